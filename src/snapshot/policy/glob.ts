/** An element of a path pattern. */
export type GlobElement =
  | { readonly kind: 'char'; readonly char: string }
  /** `?`: one character except a slash. */
  | { readonly kind: 'one' }
  /** `[...]`: a regular expression for one character. */
  | { readonly kind: 'set'; readonly members: RegExp }
  /** `*`: any characters except slashes. */
  | { readonly kind: 'star' }
  /** Any characters, including slashes. */
  | { readonly kind: 'all' }
  /** `**` and the slash after it: any directories, or none. */
  | { readonly kind: 'directories' };

/** Maximum cached masks. Paths have few different characters. */
const MASKS_MAX = 512;

/**
 * Matches whole texts against a pattern. Holds all possible positions in the pattern as a row of
 * bits. So the time is at most text length times pattern length / 32. A regular expression with
 * several stars backtracks without a time limit.
 */
export class Glob {
  readonly #elements: readonly Step[];
  readonly #words: number;
  /** Bits of steps that stay at any character, and at any character except a slash. */
  readonly #staysAlways: Uint32Array;
  readonly #staysInName: Uint32Array;
  /** Bits of optional steps that lead one step on, or two. */
  readonly #skipsOne: Uint32Array;
  readonly #skipsTwo: Uint32Array;
  readonly #masks = new Map<string, Uint32Array>();
  /** The fixed end of the pattern, to quickly reject most paths. */
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

  /** Whether a text with this beginning can match. */
  mayBegin(start: string): boolean {
    return this.#openAfter(start) !== undefined;
  }

  /** The possible positions after a text, or undefined. */
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

  /** Adds positions reached without a character. Few steps in a row allow it, see toSteps. */
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

/** `fork` leads to the next step, `path`, or past it. `path` matches up to a slash. */
type Step = GlobElement | 'star' | 'all' | 'fork' | 'path';

const charOf = (element: GlobElement): string => (element.kind === 'char' ? element.char : '');

function advances(step: Step, char: string): boolean {
  if (typeof step === 'string') return step === 'path' && char === '/';
  if (step.kind === 'char') return step.char === char;
  if (step.kind === 'set') return step.members.test(char);
  return step.kind === 'one' && char !== '/';
}

/** Repeated elements that can match nothing are merged. */
function toSteps(elements: readonly GlobElement[]): Step[] {
  return elements.flatMap((element, i): Step[] => {
    const { kind } = element;
    if (kind === 'char' || kind === 'one' || kind === 'set') return [element];
    if (elements[i - 1]?.kind === kind) return [];
    return kind === 'directories' ? ['fork', 'path'] : [kind];
  });
}
