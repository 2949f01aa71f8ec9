/** One element of a pattern for paths. */
export type GlobElement =
  | { readonly kind: 'char'; readonly char: string }
  /** `?`: one character, but no slash. */
  | { readonly kind: 'one' }
  /** `[...]`: the members as a regular expression for one character. */
  | { readonly kind: 'set'; readonly members: RegExp }
  /** `*`: any characters but no slash. */
  | { readonly kind: 'star' }
  /** Any characters, slashes too. */
  | { readonly kind: 'all' }
  /** `**` and the slash after it: nothing, or any directories. */
  | { readonly kind: 'directories' };

/** Masks that are kept for characters seen before. Paths have few different ones. */
const MASKS_MAX = 512;

/**
 * Matches whole texts against a pattern. All positions in the pattern that are still possible are
 * one row of bits, so the time is at most the length of the text times the length of the pattern /
 * 32, whatever both are. A regular expression goes back and tries again, which for several stars
 * takes time without a bound.
 */
export class Glob {
  readonly #elements: readonly Step[];
  readonly #words: number;
  /** Bits of the steps that stay where they are: on any character, and on any but a slash. */
  readonly #staysAlways: Uint32Array;
  readonly #staysInName: Uint32Array;
  /** Bits of the steps that may be left out, with one and with two places to go on. */
  readonly #skipsOne: Uint32Array;
  readonly #skipsTwo: Uint32Array;
  readonly #masks = new Map<string, Uint32Array>();
  /** What the text must end with: a quick "no" for most paths. */
  readonly #suffix: string;

  constructor(elements: readonly GlobElement[]) {
    this.#elements = toSteps(elements);
    this.#words = (this.#elements.length >>> 5) + 1;
    this.#staysAlways = this.#bits((step) => step === 'all' || step === 'path');
    this.#staysInName = this.#bits((step) => step === 'all' || step === 'path' || step === 'star');
    this.#skipsOne = this.#bits((step) => step === 'all' || step === 'star' || step === 'fork');
    this.#skipsTwo = this.#bits((step) => step === 'fork');
    const last = elements.findLastIndex(({ kind }) => kind !== 'char');
    this.#suffix = elements
      .slice(last + 1)
      .map((element) => charOf(element))
      .join('');
  }

  matches(text: string): boolean {
    if (!text.endsWith(this.#suffix)) return false;
    const end = this.#elements.length;
    const open = this.#openAfter(text);
    return open !== undefined && (((open[end >>> 5] as number) >>> (end & 31)) & 1) === 1;
  }

  /** Whether a text that begins like this can match. */
  mayBegin(start: string): boolean {
    return this.#openAfter(start) !== undefined;
  }

  /** The positions that are possible behind a text; undefined where none is. */
  #openAfter(text: string): Uint32Array | undefined {
    const words = this.#words;
    const open = new Uint32Array(words);
    open[0] = 1;
    this.#skip(open);
    for (const char of text) {
      const mask = this.#maskOf(char);
      const stays = char === '/' ? this.#staysAlways : this.#staysInName;
      let any = 0;
      let carry = 0;
      for (let w = 0; w < words; w++) {
        const before = open[w] as number;
        const advanced = before & (mask[w] as number);
        const next = (advanced << 1) | carry | (before & (stays[w] as number));
        carry = advanced >>> 31;
        open[w] = next;
        any |= next;
      }
      if (any === 0) return undefined;
      this.#skip(open);
    }
    return open;
  }

  /**
   * Adds the places that are reached without a character. Few steps in a row can be skipped: see
   * toSteps.
   */
  #skip(open: Uint32Array): void {
    for (let changed = true; changed;) {
      changed = false;
      let [carryOne, carryTwo] = [0, 0];
      for (let w = 0; w < this.#words; w++) {
        const before = open[w] as number;
        const one = before & (this.#skipsOne[w] as number);
        const two = before & (this.#skipsTwo[w] as number);
        const after = (before | (one << 1) | (two << 2) | carryOne | carryTwo) >>> 0;
        carryOne = one >>> 31;
        carryTwo = two >>> 30;
        if (after === before) continue;
        open[w] = after;
        changed = true;
      }
    }
  }

  #maskOf(char: string): Uint32Array {
    const known = this.#masks.get(char);
    if (known) return known;
    const mask = this.#bits((step) => advances(step, char));
    if (this.#masks.size < MASKS_MAX) this.#masks.set(char, mask);
    return mask;
  }

  #bits(has: (step: Step) => boolean): Uint32Array {
    const bits = new Uint32Array(this.#words);
    this.#elements.forEach((step, i) => {
      if (has(step)) bits[i >>> 5] = (bits[i >>> 5] as number) | (1 << (i & 31));
    });
    return bits;
  }
}

/**
 * `fork` leads to the `path` behind it or past it; `path` takes characters up to and with a slash.
 */
type Step = GlobElement | 'star' | 'all' | 'fork' | 'path';

const charOf = (element: GlobElement): string => (element.kind === 'char' ? element.char : '');

function advances(step: Step, char: string): boolean {
  if (typeof step === 'string') return step === 'path' && char === '/';
  if (step.kind === 'char') return step.char === char;
  if (step.kind === 'set') return step.members.test(char);
  return step.kind === 'one' && char !== '/';
}

/** The same element twice in a row means no more than once, where it may stand for nothing. */
function toSteps(elements: readonly GlobElement[]): Step[] {
  return elements.flatMap((element, i): Step[] => {
    const { kind } = element;
    if (kind === 'char' || kind === 'one' || kind === 'set') return [element];
    if (elements[i - 1]?.kind === kind) return [];
    return kind === 'directories' ? ['fork', 'path'] : [kind];
  });
}
