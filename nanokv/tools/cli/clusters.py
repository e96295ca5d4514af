"""Commands about a cluster, by the URL of its registry: what ls, stats and fsck show then."""

import time
from typing import Any

import typer
from rich.text import Text

from nanokv.errors import InvalidArgument
from nanokv.tools.cli.output import columns, console, print_json, size

_BREACH, _LEFTOVERS, _UNSEEN = 1, 3, 2
_NO_CARD: dict[str, Any] = {"node": None, "rank": None, "ranks": 0, "bytes": 0, "link": None}
_NO_CARD |= {"seal": None, "guests": None, "address": None}


def is_cluster(name: str) -> bool:
    """Whether a name is the URL of a registry, and not that of a world."""
    return "://" in name


def _observer(url: str) -> Any:
    try:
        from nanokv.cluster.observer import Observer
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"a cluster needs the package {error.name}: pip install 'nanokv[cluster]'") from None
    from nanokv.cluster.membership.addresses import PASSWORD_VARIABLE, has_password

    if has_password(url):
        typer.echo(
            "warning: every user of this host sees the password of this command line: write etcd://USER@HOST:PORT/NAME,"
            f" and set {PASSWORD_VARIABLE}",
            err=True,
        )
    return Observer(url)


def _shown(url: str) -> str:
    from nanokv.cluster.membership.addresses import masked

    return masked(url)


def list_members(url: str, as_json: bool) -> None:
    """The members that the registry shows, and whether they answer."""
    from nanokv.cluster.kinds import Kind

    rows = []
    with _observer(url) as observer:
        for name, card, why in observer.members():
            if card is None:
                rows.append({"name": name, "state": f"unusable: {why}"} | _NO_CARD)
                continue
            answer = observer.ask(card, Kind.STATS)
            total = card.geometry.world_size * card.geometry.segment_bytes
            known = {"node": card.node, "rank": card.rank, "ranks": card.geometry.world_size, "bytes": total}
            where = {
                "link": card.link or "wire",
                "seal": card.seal,
                "guests": card.geometry.guests,
                "address": card.wire,
            }
            where["since"] = card.incarnation / 1e9
            rows.append({"name": name, "state": answer if isinstance(answer, str) else "alive"} | known | where)
    if as_json:
        print_json(rows)
        return
    screen = console()
    shown = [_member_row(row) for row in rows]
    names = ("node", "rank", "ranks", "memory", "link", "seal", "guests", "address", "state")
    for line in columns(screen, names, shown) if shown else ["no members"]:
        screen.print(line, soft_wrap=True)


def _member_row(row: dict[str, Any]) -> list[str]:
    known = {name: "-" if value is None else str(value) for name, value in row.items()}
    if row["node"] is None:
        return [row["name"], "-", "-", "-", "-", "-", "-", "-", row["state"]]
    first = [known[name] for name in ("node", "rank", "ranks")]
    return [*first, size(row["bytes"]), known["link"], known["seal"], known["guests"], known["address"], row["state"]]


_SHOWN = ("ready", "pinned", "unfinished", "evicted", "refused", "lost", "corrupt")
_OF_CLUSTER = {"peer_lost": "peer_lost", "msg_refused": "messages_refused", "msg_dropped": "messages_dropped"}


def show_stats(url: str, as_json: bool) -> None:
    """What each member's own segment holds."""
    from nanokv.cluster.kinds import Kind

    found = []
    with _observer(url) as observer:
        for name, card, why in observer.members():
            answer = why if card is None else observer.ask(card, Kind.STATS)
            if isinstance(answer, str):
                found.append({"name": name, "error": answer})
            else:
                found.append({"name": name, "node": card.node, "seal": card.seal} | answer)
    if as_json:
        print_json({"cluster": _shown(url), "at": time.time(), "members": found})
        return
    screen = console()
    rows = [_stats_row(each) for each in found if "error" not in each]
    for line in columns(screen, ("node", "rank", "used", "of", "%", "stored", *_SHOWN, *_OF_CLUSTER), rows):
        screen.print(line)
    for each in found:
        if "error" in each:
            screen.print(Text(f"{each['name']}: {each['error']}", style="red"), soft_wrap=True)
    raise typer.Exit(_UNSEEN if any("error" in each for each in found) else 0)


def _stats_row(each: dict[str, Any]) -> list[str]:
    sizes = [size(each[name]) for name in ("heap_used", "heap_total")]
    counts = [str(each[name]) for name in _SHOWN] + [str(each.get(name, "-")) for name in _OF_CLUSTER.values()]
    return [each["node"], str(each["rank"]), *sizes, f"{100 * each['usage']:.0f}", size(each["bytes_stored"]), *counts]


def check(url: str, as_json: bool, quick: bool) -> None:
    """fsck of each node's world, by one of its members."""
    from nanokv.cluster.kinds import Kind
    from nanokv.cluster.serving import QUICK

    found: dict[str, Any] = {}
    with _observer(url) as observer:
        for name, card, why in observer.members():
            if card is None:
                found[name] = why
            elif isinstance(found.get(card.node, ""), str):
                found[card.node] = observer.ask(card, Kind.FSCK, QUICK if quick else b"")
    if as_json:
        print_json({"cluster": _shown(url), "nodes": found})
    else:
        _print_reports(found)
    reports = [report for report in found.values() if isinstance(report, dict)]
    if any(report["breaches"] for report in reports):
        raise typer.Exit(_BREACH)
    if len(reports) < len(found) or not found:
        raise typer.Exit(_UNSEEN)
    raise typer.Exit(_LEFTOVERS if any(report["leftovers"] for report in reports) else 0)


def _print_reports(found: dict[str, Any]) -> None:
    from nanokv.fsck.report import Finding

    screen = console()
    for node, report in found.items():
        if isinstance(report, str):
            screen.print(Text(f"{node}: not looked at: {report}", style="red"), soft_wrap=True)
            continue
        state = "rest" if report["quiescent"] else "work"
        screen.print(f"{node}: {report['segments']} segments, {report['objects']} objects, at {state}")
        for each in report["findings"]:
            finding = Finding(**each)
            screen.print(Text(f"  {finding}", style="red" if finding.breach else "yellow"), soft_wrap=True)
        for what in report["not_looked_at"]:
            screen.print(f"  not looked at: {what}", soft_wrap=True)
        if not report["findings"]:
            screen.print(Text("  clean", style="green"))
    if not found:
        screen.print("no members")
