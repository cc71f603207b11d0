"""NetworkPolicies as rules of iptables: what a pod of given labels lets in and out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A pod that may connect: its labels and its address."""

    labels: Labels
    address: str


def selects(selector: Object, labels: Labels) -> bool:
    """Whether a label selector of Kubernetes matches; an empty one matches all."""
    wanted = {key: [value] for key, value in selector.get("matchLabels", {}).items()}
    wanted |= {each["key"]: each["values"] for each in selector.get("matchExpressions", ())}
    return all(labels.get(key) in values for key, values in wanted.items())


def ranges(rule: Object) -> list[tuple[int, int]]:
    """The ports of a rule, as first and last; all of them if it names none."""
    ports = rule.get("ports") or [{"port": 1, "endPort": 65535}]
    return [(each["port"], each.get("endPort", each["port"])) for each in ports]


def open_ports(policies: Iterable[Object], labels: Labels, of: Labels) -> list[tuple[int, int]]:
    """The ports on which a pod with `labels` lets a pod with the labels `of` in."""
    return [
        ports
        for policy in policies
        if selects(policy["spec"]["podSelector"], labels)
        for rule in policy["spec"].get("ingress", ())
        if "from" not in rule or any(selects(peer["podSelector"], of) for peer in rule["from"])
        for ports in ranges(rule)
    ]


def rules(policies: Iterable[Object], labels: Labels, neighbours: Iterable[Neighbour], node: str) -> str:
    """Input of iptables-restore for a pod with `labels`. Its node, on which the kubelet runs, may always connect.

    What it refuses is counted and dropped: by a rule for each neighbour, and for everybody else by the policy.
    """
    chosen = [each for each in policies if selects(each["spec"]["podSelector"], labels)]
    directions = {direction for each in chosen for direction in each["spec"]["policyTypes"]}
    lines = [
        "*filter",
        f":INPUT {'DROP' if 'Ingress' in directions else 'ACCEPT'} [0:0]",
        f":OUTPUT {'DROP' if 'Egress' in directions else 'ACCEPT'} [0:0]",
        "-A INPUT -i lo -j ACCEPT",
        "-A OUTPUT -o lo -j ACCEPT",
        "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        "-A OUTPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        f"-A INPUT -s {node} -j ACCEPT",
    ]
    assert not any(each["spec"].get("egress") for each in chosen), "only policies without egress rules are known here"
    if "Ingress" in directions:
        for one in neighbours:
            for first, last in open_ports(chosen, labels, one.labels):
                lines.append(f"-A INPUT -p tcp -s {one.address} --dport {first}:{last} -j ACCEPT")
            lines.append(f"-A INPUT -s {one.address} -j DROP")
    return "\n".join([*lines, "COMMIT", ""])
