"""Max-min fair sharing of many links: a topology of edge, regional and server links.

Rates follow from progressive filling (Bertsekas & Gallager, Data Networks, 1992, §6.5.2): raise
the rates of all flows together; a flow stops at its cap, and a link that is full stops its flows;
go on with the others. Every change of the flows fills anew, O(links × flows). For one link,
:mod:`emulator.simulation.fair_sharing` gives the same rates faster.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from emulator.errors import ScenarioError
from emulator.simulation.clock import Clock
from emulator.simulation.fair_sharing import Meter, Sharing
from emulator.simulation.network import AccessLinks, Direction, SharedNetwork

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def fill(capacity_Bps: FloatArray, paths: IntArray, cap_Bps: FloatArray) -> FloatArray:
    """Max-min fair rates ``[flows]`` of flows with caps ``[flows]``.

    ``paths`` is ``[flows, hops]``, indices into ``capacity_Bps`` ``[links + 1]``, whose last
    entry is infinite and pads short paths.

    Each pass finds the smallest level ``(C - served by stopped flows) / flows still rising`` of
    all links. Nobody can end below it, so flows with caps up to it stop at their caps; when
    there are none, the link of that level is full, and its flows stop there.
    """
    rate_Bps = np.zeros(len(cap_Bps))
    rising = np.ones(len(cap_Bps), dtype=bool)
    links = len(capacity_Bps)
    left_Bps = capacity_Bps.copy()
    while rising.any():
        flows_on = np.bincount(paths[rising].ravel(), minlength=links)
        level_Bps = np.full(links, math.inf)
        np.divide(left_Bps, flows_on, out=level_Bps, where=flows_on > 0)
        lowest_Bps = level_Bps.min()
        stopping = rising & (cap_Bps <= lowest_Bps)
        if stopping.any():
            rate_Bps[stopping] = cap_Bps[stopping]
        else:
            stopping = rising & (level_Bps[paths] == lowest_Bps).any(axis=1)
            rate_Bps[stopping] = lowest_Bps
        rising &= ~stopping
        hops = paths.shape[1]
        served = np.repeat(rate_Bps[stopping], hops)
        left_Bps -= np.bincount(paths[stopping].ravel(), weights=served, minlength=links)
    return rate_Bps


@dataclass(frozen=True, slots=True)
class _Route:
    """The way between the server and a node: link indices ``[hops]``, padded, and latency."""

    path: IntArray
    latency_s: float


def _routes(
    graph: nx.DiGraph[Any], server: Hashable, links: Mapping[Any, int]
) -> dict[Direction, dict[Hashable, _Route]]:
    """By direction and node: the route of fewest edges, of those the one of lowest latency."""
    # Divided by this, latencies add up to less than 1 on any path: one edge less always wins.
    scale_s = 1.0 + math.fsum(float(graph.edges[edge]["latency_s"]) for edge in links)

    def weight(_from: Hashable, _to: Hashable, attributes: dict[str, Any]) -> float:
        return 1.0 + float(attributes["latency_s"]) / scale_s

    down = nx.single_source_dijkstra_path(graph, server, weight=weight)
    up = nx.single_source_dijkstra_path(graph.reverse(), server, weight=weight)
    # At least one hop, so that the paths of flows are never an array without columns.
    longest = max(2, *(len(nodes) for nodes in (*down.values(), *up.values()))) - 1

    def route(nodes: list[Hashable]) -> _Route:
        hops = list(pairwise(nodes))
        path = np.full(longest, len(links), dtype=np.int64)
        path[: len(hops)] = [links[hop] for hop in hops]
        return _Route(path, math.fsum(float(graph.edges[hop]["latency_s"]) for hop in hops))

    return {
        "down": {node: route(nodes) for node, nodes in down.items()},
        "up": {node: route(nodes[::-1]) for node, nodes in up.items()},
    }


class _Filling:
    """All flows of a topology: parallel arrays, one row a flow, in the order of ``clients``."""

    def __init__(self, capacity_Bps: FloatArray, hops: int) -> None:
        self.clients: list[int] = []
        self.up = np.zeros(0, dtype=bool)
        self.finish_s = np.zeros(0)
        self.meters: dict[Direction, Meter] = {"down": Meter(), "up": Meter()}
        self._capacity_Bps = capacity_Bps
        self._now_s = 0.0
        self._paths: IntArray = np.zeros((0, hops), dtype=np.int64)
        self._cap_Bps = np.zeros(0)
        self._rate_Bps = np.zeros(0)
        self._left_bytes = np.zeros(0)

    def add(
        self, now_s: float, client: int, up: bool, path: IntArray, cap_Bps: float, size: float
    ) -> None:
        self._advance(now_s)
        self.clients.append(client)
        self.up = np.append(self.up, up)
        self._paths = np.concatenate([self._paths, path[None, :]])
        self._cap_Bps = np.append(self._cap_Bps, cap_Bps)
        self._left_bytes = np.append(self._left_bytes, size)
        self._fill()

    def remove(self, now_s: float, rows: IntArray) -> None:
        self._advance(now_s)
        for row in sorted(rows.tolist(), reverse=True):
            del self.clients[row]
        self.up = np.delete(self.up, rows)
        self._paths = np.delete(self._paths, rows, axis=0)
        self._cap_Bps = np.delete(self._cap_Bps, rows)
        self._left_bytes = np.delete(self._left_bytes, rows)
        self._fill()

    def left_bytes(self, now_s: float, client: int) -> float:
        row = self.clients.index(client)
        left_bytes = self._left_bytes[row] - self._rate_Bps[row] * (now_s - self._now_s)
        return max(0.0, float(left_bytes))

    def _advance(self, now_s: float) -> None:
        self._left_bytes = self._left_bytes - self._rate_Bps * (now_s - self._now_s)
        np.maximum(self._left_bytes, 0.0, out=self._left_bytes)
        self._now_s = now_s

    def _fill(self) -> None:
        self._rate_Bps = fill(self._capacity_Bps, self._paths, self._cap_Bps)
        self.finish_s = self._now_s + self._left_bytes / self._rate_Bps
        self.meters["down"].set_rate(self._now_s, float(self._rate_Bps[~self.up].sum()))
        self.meters["up"].set_rate(self._now_s, float(self._rate_Bps[self.up].sum()))


class _Lane:
    """One direction of a topology's flows; a :class:`Sharing`."""

    def __init__(
        self,
        filling: _Filling,
        direction: Direction,
        attachment: Sequence[Hashable],
        routes: Mapping[Hashable, _Route],
    ) -> None:
        self.meter = filling.meters[direction]
        self._filling = filling
        self._up = direction == "up"
        self._attachment = attachment
        self._routes = routes

    @property
    def due(self) -> tuple[float, int]:
        rows = np.flatnonzero(self._filling.up == self._up)
        finish_s = self._filling.finish_s[rows]
        first_s = float(finish_s.min(initial=math.inf))
        first = rows[finish_s == first_s]
        return first_s, min((self._filling.clients[row] for row in first), default=-1)

    def join(self, now_s: float, client: int, cap_Bps: float, size_bytes: float) -> None:
        path = self._routes[self._attachment[client]].path
        self._filling.add(now_s, client, self._up, path, cap_Bps, size_bytes)

    def leave(self, now_s: float, client: int) -> float:
        left_bytes = self._filling.left_bytes(now_s, client)
        self._filling.remove(now_s, np.array([self._filling.clients.index(client)]))
        return left_bytes

    def complete(self, now_s: float) -> list[int]:
        filling = self._filling
        done: list[int] = []
        while self.due[0] <= now_s:
            rows = np.flatnonzero((filling.up == self._up) & (filling.finish_s <= now_s))
            done += [filling.clients[row] for row in rows]
            filling.remove(now_s, rows)
        return sorted(done)

    def remaining_bytes(self, now_s: float, client: int) -> float:
        return self._filling.left_bytes(now_s, client)


class Topology(SharedNetwork):
    """Clients attached to the nodes of a network, and the server at one of them.

    Each edge has ``rate_Bps`` and ``latency_s``; an edge of an undirected graph carries its rate
    in each direction. A transfer takes the path of fewest edges, of those the one with the
    lowest latency. It pays the client's latency and that of its path, and is then served at its
    max-min fair share, at most the rate of the client's access link. ``attachment[c]`` is the
    node of client c; the server's own node is allowed.

    Raises :class:`ScenarioError` for a node that is missing or cannot be reached, and for an
    edge without a positive finite rate or with a latency that is negative or not finite.
    """

    def __init__(
        self,
        clock: Clock,
        access: AccessLinks,
        graph: nx.Graph[Any] | nx.DiGraph[Any],
        server: Hashable,
        attachment: Sequence[Hashable],
    ) -> None:
        if graph.is_multigraph():
            raise ScenarioError("topology: it joins two nodes by several edges; allowed is one")
        if len(attachment) != len(access.latency_s):
            raise ScenarioError(
                f"topology: {len(attachment)} clients are attached to nodes, but "
                f"{len(access.latency_s)} have access links; attach each client to one node"
            )
        if server not in graph:
            raise ScenarioError(f"topology: the server's node {server!r} is not in the graph")
        directed = graph.to_directed()
        links = {edge: number for number, edge in enumerate(directed.edges)}
        for edge in links:
            _check_edge(edge, directed.edges[edge])
        rates_Bps = [float(directed.edges[edge]["rate_Bps"]) for edge in links]
        routes = _routes(directed, server, links)
        for client, node in enumerate(attachment):
            if node not in routes["down"] or node not in routes["up"]:
                fault = "has no path to and from the server" if node in graph else "is not in it"
                raise ScenarioError(
                    f"topology: node {node!r}, to which client {client} is attached, {fault}; "
                    "attach the client to a node that the server reaches, and that reaches it"
                )
        self._attachment = attachment
        self._routes = routes
        filling = _Filling(np.array([*rates_Bps, math.inf]), len(routes["down"][server].path))
        lanes: dict[Direction, Sharing] = {
            "down": _Lane(filling, "down", attachment, routes["down"]),
            "up": _Lane(filling, "up", attachment, routes["up"]),
        }
        super().__init__(clock, access, lanes, coupled=True)

    def _latency_s(self, client: int, direction: Direction) -> float:
        route = self._routes[direction][self._attachment[client]]
        return super()._latency_s(client, direction) + route.latency_s


def _check_edge(edge: tuple[Hashable, Hashable], attributes: Mapping[str, Any]) -> None:
    where = f"topology: edge {edge[0]!r} - {edge[1]!r}"
    for name, allowed in (("rate_Bps", "above 0"), ("latency_s", "at least 0")):
        value = attributes.get(name)
        number = float(value) if isinstance(value, int | float) else math.nan
        if not 0 <= number < math.inf or (number == 0 and name == "rate_Bps"):
            raise ScenarioError(f"{where}: {name} is {value!r}; it must be finite and {allowed}")
