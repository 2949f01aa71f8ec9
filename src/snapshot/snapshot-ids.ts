import { CodedError, namedFirst } from '../base/index.ts';
import type { Manifest, ManifestId } from '../repository/index.ts';

/** Shorter prefixes are likely typing errors. */
const DIGITS_MIN = 4;
const PREFIX = /^[0-9a-f]{1,32}$/;
const SHOWN_MAX = 5;

/** The IDs of all snapshots, for looking up many names. */
export class SnapshotIds {
  readonly #manifests: ReadonlyMap<string, Manifest>;
  #sorted: readonly string[] | undefined;

  constructor(manifests: readonly Manifest[]) {
    this.#manifests = new Map(manifests.map((manifest) => [manifest.id, manifest]));
  }

  /**
   * The snapshot with this ID, or the only snapshot whose ID starts with the text, or undefined.
   * Throws `AMBIGUOUS_SNAPSHOT`, `SHORT_SNAPSHOT_ID`.
   */
  find(text: string): Manifest | undefined {
    const exact = this.#manifests.get(text);
    if (exact || !PREFIX.test(text)) return exact;
    if (text.length < DIGITS_MIN) {
      const message = `"${text}" is too short: write at least ${DIGITS_MIN} digits of a snapshot's ID`;
      throw new CodedError('SHORT_SNAPSHOT_ID', message);
    }
    const found = this.#beginningWith(text);
    if (found.length <= 1) return this.#manifests.get(found[0] ?? '');
    const shown = namedFirst(found, SHOWN_MAX, (id) => this.#describe(id));
    throw new CodedError(
      'AMBIGUOUS_SNAPSHOT',
      `${text} is the beginning of ${found.length} snapshots: ${shown}`,
    );
  }

  /** The number of first digits that makes all IDs unique, at least `digitsMin`. */
  digitsToTellApart(digitsMin: number): number {
    let digits = digitsMin;
    for (let i = 1; i < this.#ids.length; i++) {
      const [before = '', id = ''] = [this.#ids[i - 1], this.#ids[i]];
      while (digits < id.length && before.startsWith(id.slice(0, digits))) digits++;
    }
    return digits;
  }

  get #ids(): readonly string[] {
    return (this.#sorted ??= [...this.#manifests.keys()].sort());
  }

  #beginningWith(text: string): string[] {
    const ids = this.#ids;
    let [low, high] = [0, ids.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((ids[middle] ?? '') < text) low = middle + 1;
      else high = middle;
    }
    const found: string[] = [];
    for (let at = low; ids[at]?.startsWith(text); at++) found.push(ids[at] as ManifestId);
    return found;
  }

  #describe(id: string): string {
    const { hostname = '?', username = '?', path = '?' } = this.#manifests.get(id)?.labels ?? {};
    return `${id} (${username}@${hostname}:${path})`;
  }
}
