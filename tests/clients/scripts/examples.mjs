// Types and tools of the scripts that ask for structured output and calls: bounded, so that any model ends them.
import { z } from "zod";
import { expect } from "./steps.mjs";

export const ask = "What will the weather be in Rome for the next 3 days?";
export const length = 200; // more tokens than any of these documents and calls needs

export const Weather = z.object({ city: z.enum(["Paris", "Rome", "Oslo"]), days: z.number().int().min(1).max(9) });

export const Report = z.object({
  place: z.object({ city: z.enum(["Paris", "Rome", "Oslo"]), country: z.string().regex(/^[A-Z]{2}$/) }),
  sky: z.enum(["clear", "clouds"]),
  celsius: z.number().int().min(-50).max(50),
  warnings: z.array(z.enum(["ice", "storm"])).max(2),
  remark: z.string().max(12).nullable(),
});

/** Throws unless the object is one of the type. */
export function check(type, object) {
  const result = type.safeParse(object);
  expect(result.success, object, result.error?.message);
}
