import { isCode, lookup } from '../../base/index.ts';
import { bad, BACKSLASH_AT_END, CLASSES, naming, PATTERN_CHARS_MAX } from './path-pattern.ts';

/** A rule of a policy or an ignore file, in Kopia's syntax. */
export interface IgnorePattern {
  readonly negated: boolean;
  /** Several stars, or a star and sets, take several times as long as other rules. */
  readonly isCostly: boolean;
  /** `path` starts with `/`, the root. Returns true to ignore, or to keep if negated. */
  applies(path: string, isDirectory: boolean): boolean;
}

type Token =
  | { readonly kind: 'char'; readonly char: string }
  | { readonly kind: 'slash' }
  /** `?`: any character except a slash. */
  | { readonly kind: 'one' }
  /** Includes slashes, even if negated. */
  | { readonly kind: 'set'; readonly has: (char: string) => boolean }
  | { readonly kind: 'star'; readonly isDouble: boolean };

const SLASH: Token = { kind: 'slash' };
const ANY_DIRECTORIES: readonly Token[] = [{ kind: 'star', isDouble: true }, SLASH];
const SPACE_AT_START = /^\p{White_Space}+/u;
const SPACE_AT_END = /\p{White_Space}+$/u;

/**
 * Parses a rule like Kopia (internal/wcmatch, v0.23.1), with its peculiarities. `**` at the start
 * of a rule needs no slash after it. `*` may match one slash. `[^a]` negates nothing. `[[:alpha:]]`
 * is a class only near the start. `baseDirectory` is the rule's directory: '' for the root, or
 * `/sub/dir`. Throws `BAD_IGNORE_PATTERN`.
 */
export const parseIgnorePattern = (text: string, baseDirectory: string): IgnorePattern =>
  naming(text, () => parseRule(text, baseDirectory));

/**
 * Rules of an ignore file, one a line, without `#` comments and blank lines. Throws
 * `BAD_IGNORE_PATTERN` with the line number but not its text, because the user may not be allowed
 * to read the file.
 */
export function parseIgnoreFile(text: string, baseDirectory: string): IgnorePattern[] {
  return text.split('\n').flatMap((each, i) => {
    const line = each.replace(/\r$/, '');
    if (/^\p{White_Space}*$/u.test(line) || line.startsWith('#')) return [];
    try {
      return parseRule(line, baseDirectory);
    } catch (cause) {
      if (!isCode(cause, 'BAD_IGNORE_PATTERN')) throw cause;
      throw bad(`line ${i + 1} is not a rule: ${cause.message}`);
    }
  });
}

function parseRule(text: string, baseDirectory: string): IgnorePattern {
  if (text.length > PATTERN_CHARS_MAX) {
    throw bad(`it is longer than ${PATTERN_CHARS_MAX} characters`);
  }
  const base = baseDirectory.length > 1 ? baseDirectory.replace(/\/$/, '') : baseDirectory;
  const { tokens, negated, directoryOnly, implied } = new RuleReader(trimmed(text)).read(base);
  const own = tokens.slice(implied);
  const stars = own.filter(({ kind }) => kind === 'star').length;
  const hasSet = own.some(({ kind }) => kind === 'set');
  const expression = expressionOf(tokens, implied);
  const matcher = expression ? undefined : new KopiaMatcher(tokens);
  return {
    negated,
    isCostly: stars > 1 || (stars === 1 && hasSet),
    applies: (path, isDirectory) =>
      (isDirectory || !directoryOnly) &&
      (expression?.test(path) ?? (matcher as KopiaMatcher).matches(path)),
  };
}

/** Keeps a space after a final backslash. */
function trimmed(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= 2 || bytes.at(-2) === 0x5c) return text;
  return text.replace(SPACE_AT_START, '').replace(SPACE_AT_END, '');
}

interface ReadRule {
  readonly tokens: readonly Token[];
  /** Leading tokens that stand for the rule's directory and any directory below it. */
  readonly implied: number;
  readonly negated: boolean;
  readonly directoryOnly: boolean;
}

/** Parses a rule from left to right. */
class RuleReader {
  readonly #pattern: string;
  #chars: readonly string[];
  #at = 0;

  constructor(pattern: string) {
    this.#pattern = pattern;
    this.#chars = [...pattern];
  }

  read(base: string): ReadRule {
    while (/^\p{White_Space}$/u.test(this.#peek() ?? '')) this.#at++;
    const negated = this.#peek() === '!';
    if (negated) this.#at++;
    const start = this.#impliedBy(base);
    const directoryOnly = this.#chars.at(-1) === '/';
    if (directoryOnly) this.#chars = this.#chars.slice(0, -1);
    const tokens = [...start];
    for (let char = this.#take(); char !== undefined; char = this.#take()) {
      tokens.push(this.#tokenOf(char));
    }
    return { tokens, implied: start.length, negated, directoryOnly };
  }

  #impliedBy(base: string): Token[] {
    if (this.#pattern === '') return [];
    const isRooted = this.#peek() === '/';
    const tokens = [...base].map((char): Token => (char === '/' ? SLASH : { kind: 'char', char }));
    if (base !== '' && !isRooted) tokens.push(SLASH);
    if (isRooted || this.#pattern === '**') return tokens;
    const slash = this.#chars.indexOf('/', this.#at);
    if (slash === -1 || slash === this.#chars.length - 1) tokens.push(...ANY_DIRECTORIES);
    else if (base === '') tokens.push(SLASH);
    return tokens;
  }

  #peek(ahead = 0): string | undefined {
    const char = this.#chars[this.#at + ahead];
    return char === '\0' ? undefined : char;
  }

  #take(): string | undefined {
    const char = this.#peek();
    if (char !== undefined) this.#at++;
    return char;
  }

  #escaped(): string {
    const char = this.#take();
    if (char === undefined) throw bad(BACKSLASH_AT_END);
    return char;
  }

  #tokenOf(char: string): Token {
    if (char === '\\') return { kind: 'char', char: this.#escaped() };
    if (char === '?') return { kind: 'one' };
    if (char === '/') return SLASH;
    if (char === '[') return this.#set();
    if (char !== '*') return { kind: 'char', char };
    if (this.#peek() !== '*') return { kind: 'star', isDouble: false };
    const before = this.#peek(-2);
    while (this.#peek() === '*') this.#at++;
    const isWhole = this.#peek() === '/' || this.#at >= this.#chars.length;
    return { kind: 'star', isDouble: before === undefined || (before === '/' && isWhole) };
  }

  #set(): Token {
    const negated = this.#peek() === '!';
    if (negated) this.#at++;
    const members: ((char: string) => boolean)[] = [];
    for (let char = this.#take(); char !== ']'; char = this.#take()) {
      if (char === undefined) throw bad('a "[" has no "]"');
      members.push(this.#member(char === '\\' ? this.#escaped() : char));
    }
    return { kind: 'set', has: (char) => members.some((has) => has(char)) !== negated };
  }

  #member(char: string): (other: string) => boolean {
    const last = this.#peek(1);
    if (this.#peek() === '-' && last !== ']' && last !== undefined) {
      this.#at++;
      const taken = this.#take() as string;
      const [from, to] = [char, taken === '\\' ? this.#escaped() : taken].map(codeOf);
      return (other) => codeOf(other) >= (from ?? 0) && codeOf(other) <= (to ?? 0);
    }
    if (char === '[' && this.#peek() === ':') {
      const inside = this.#class();
      if (inside) return (other) => inside.test(other);
    }
    return (other) => other === char;
  }

  /** Kopia compares the name's length with its position. Later in a rule, it is no class. */
  #class(): RegExp | undefined {
    const end = this.#chars.indexOf(']', this.#at);
    if (end === -1) throw bad('a "[" has no "]"');
    const length = end - this.#at;
    if (length - 1 <= this.#at || this.#chars[end - 1] !== ':') return undefined;
    const name = this.#chars.slice(this.#at + 1, end - 1).join('');
    const members = lookup(CLASSES, name.toLowerCase());
    if (members === undefined) throw bad('a "[:class:]" has an unknown name');
    this.#at = end + 1;
    return new RegExp(`^[${members}]$`, 'su');
  }
}

const codeOf = (char: string): number => char.codePointAt(0) ?? 0;
const quote = (char: string): string => char.replace(/[\\^$.*+?()[\]{}|/]/, '\\$&');

/**
 * A regular expression for rules with at most one star, which are the most common. Gives the same
 * result as {@link KopiaMatcher}, but faster. Undefined for other rules.
 */
function expressionOf(tokens: readonly Token[], implied: number): RegExp | undefined {
  const own = tokens.slice(implied);
  if (own.some(({ kind }) => kind === 'set')) return undefined;
  const stars = own.filter((token) => token.kind === 'star');
  if (stars.length > 1 || stars.some(({ isDouble }) => isDouble)) return undefined;
  const source = tokens.map((token, i) => {
    if (token.kind === 'char') return quote(token.char);
    if (token.kind === 'slash') return '/';
    if (token.kind === 'one') return '[^/]';
    if (i < implied) return '.*';
    return i === tokens.length - 1 ? '[^/]*' : '(?:[^/]*|[^/]+/)';
  });
  const star = own.findIndex(({ kind }) => kind === 'star');
  if (star !== -1 && own[star + 1]?.kind === 'slash') return undefined;
  const text = source.join('').replace('.*/', '(?:.*/)?');
  return new RegExp(`^${text}$`, 'su');
}

/**
 * Results for a token and a position. `NEVER`: the remaining text is too short for any match.
 * `AT_SLASH`: a star met a slash, and only a double star may continue.
 */
const [UNKNOWN, YES, NO, NEVER, AT_SLASH] = [0, 1, 2, 3, 4];

/** Matches like Kopia. Time is at most path length times rule length. */
class KopiaMatcher {
  readonly #tokens: readonly Token[];
  #text: readonly string[] = [];
  /** Results by token and position, for a match or a star that goes on there. */
  #begun = new Uint8Array(0);
  #further = new Uint8Array(0);

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
  }

  matches(path: string): boolean {
    this.#text = [...path];
    const size = (this.#tokens.length + 1) * (this.#text.length + 1);
    this.#begun = new Uint8Array(size);
    this.#further = new Uint8Array(size);
    return this.#match(0, 0) === YES;
  }

  #match(token: number, at: number): number {
    const place = token * (this.#text.length + 1) + at;
    const known = this.#begun[place] as number;
    if (known !== UNKNOWN) return known;
    return (this.#begun[place] = this.#look(token, at));
  }

  #look(first: number, start: number): number {
    const text = this.#text;
    let at = start;
    for (let i = first; i < this.#tokens.length; i++) {
      const token = this.#tokens[i] as Token;
      const char = text[at];
      if (token.kind === 'star') {
        const next = this.#star(i, at, start);
        if (typeof next !== 'object') return next;
        at = next.at;
        continue;
      }
      if (char === undefined) return NEVER;
      if (token.kind === 'char' && char !== token.char) return NO;
      if (token.kind === 'slash' && char !== '/') return NO;
      if (token.kind === 'one' && char === '/') return NO;
      if (token.kind === 'set' && !token.has(char)) return NO;
      at++;
    }
    return at >= text.length ? YES : NO;
  }

  /** The result, or the position for the next token. */
  #star(i: number, at: number, start: number): number | { readonly at: number } {
    const text = this.#text;
    const isDouble = (this.#tokens[i] as { isDouble?: boolean }).isDouble === true;
    const slash = text.indexOf('/', at);
    if (i === this.#tokens.length - 1) {
      return isDouble || slash === -1 ? YES : NO;
    }
    const isBeforeSlash = this.#tokens[i + 1]?.kind === 'slash';
    if (isBeforeSlash && !isDouble) {
      return slash === -1 || (slash === at && at === start) ? NO : { at: slash };
    }
    if (isBeforeSlash && i + 2 < this.#tokens.length && this.#match(i + 2, at) === YES) {
      return YES;
    }
    if (at >= text.length) return NEVER;
    const here = this.#match(i + 1, at);
    if (here !== NO && !(isDouble && here === AT_SLASH)) return here;
    if (here === NO && !isDouble && text[at] === '/') return AT_SLASH;
    return this.#goOn(i, at + 1, isDouble);
  }

  /** Continues a star after its first character. */
  #goOn(i: number, from: number, isDouble: boolean): number {
    const text = this.#text;
    const row = i * (text.length + 1);
    let result: number = NEVER;
    let at = from;
    for (; at < text.length; at++) {
      const known = this.#further[row + at] as number;
      if (known !== UNKNOWN) {
        result = known;
        break;
      }
      const here = this.#match(i + 1, at);
      if (here !== NO && !(isDouble && here === AT_SLASH)) {
        result = here;
        break;
      }
      if (here === NO && !isDouble && text[at - 1] === '/') {
        result = AT_SLASH;
        break;
      }
    }
    this.#further.fill(result, row + from, row + Math.min(at + 1, text.length));
    return result;
  }
}
