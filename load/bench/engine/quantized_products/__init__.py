"""One product by quantised weights, with our kernels and those of libraries; see `__main__.py`.

- `cases.py`: a shape with random weights in each format. `ways.py`: what a way to multiply is.
- `own.py`: our kernels. `of_torch.py`: torch's operators. `of_onednn.py`: oneDNN through torch. `of_gptqmodel.py`:
  gptqmodel, in a process of its own.
- `measure.py`: times, errors and bits. `report.py`: their tables.
"""
