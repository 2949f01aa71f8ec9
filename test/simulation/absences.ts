/** Records how long each node had no reachable agent. */
export class Absences {
  readonly #nowMs: () => number;
  readonly #open = new Map<string, { reasons: number; readonly sinceMs: number }>();
  readonly #ended = new Map<string, number>();
  readonly #longest = new Map<string, number>();

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  begin(node: string): void {
    const open = this.#open.get(node);
    if (open) open.reasons++;
    else this.#open.set(node, { reasons: 1, sinceMs: this.#nowMs() });
  }

  end(node: string): void {
    const open = this.#open.get(node);
    if (!open || --open.reasons > 0) return;
    this.#longest.set(node, this.longestMs(node));
    this.#open.delete(node);
    this.#ended.set(node, this.#nowMs());
  }

  /** Whether the node is away, or was away within the last `agoMs`. */
  isAway(node: string, agoMs: number): boolean {
    const endedMs = this.#ended.get(node);
    return this.#open.has(node) || (endedMs !== undefined && this.#nowMs() - endedMs < agoMs);
  }

  longestMs(node: string): number {
    const open = this.#open.get(node);
    return Math.max(this.#longest.get(node) ?? 0, open ? this.#nowMs() - open.sinceMs : 0);
  }
}
