import {
  type Alias,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  LineCounter,
  type Node,
  parseDocument,
  Scalar,
  visit,
} from 'yaml';
import { messageOf } from '../../base/index.ts';
import { type Place, ProblemList } from '../problems.ts';
import { goText, type PlainValue, resolvePlain } from './yaml-scalars.ts';

/** Size limit of a ConfigMap (Kubernetes: MaxSecretSize, 1 MiB for all of its data). */
const CHARACTERS_MAX = 1 << 20;
/** Limit of values with aliases expanded. Real policies have some hundred values. Our choice. */
const VALUES_MAX = 100_000;
const DEPTH_MAX = 64;

export interface Entry {
  readonly key: string;
  readonly keyNode: Node | null;
  readonly value: Node | null;
}

/**
 * A YAML document, read as Velero reads it (go.yaml.in/yaml/v3 with known fields only). Supports
 * aliases and merge keys, rejects duplicate keys, and types plain scalars as that library does.
 * Collects all problems with their lines. Documents that are too large, too deep, or grow by
 * aliases end as a problem.
 */
export class YamlDocument {
  readonly #source: string;
  readonly #firstLine: number;
  readonly #lines = new LineCounter();
  readonly #aliases = new Map<Alias, Node>();
  readonly #problems = new ProblemList();
  readonly #warnings = new ProblemList();
  #values = 0;
  #isTooLarge = false;
  /** Undefined if nothing can be read: then there is at least one problem. */
  readonly root: Node | null | undefined;

  /** `firstLine`: the line of the source where the text begins. */
  constructor(text: string, { source, firstLine = 1 }: { source: string; firstLine?: number }) {
    this.#source = source;
    this.#firstLine = firstLine;
    this.root = this.#parse(text);
  }

  get problems(): ProblemList['all'] {
    return this.#problems.all;
  }

  /** Whether the number of problems has reached its limit. */
  get isFull(): boolean {
    return this.#problems.isFull;
  }

  get warnings(): ProblemList['all'] {
    return this.#warnings.all;
  }

  #parse(text: string): Node | null | undefined {
    if (text.length > CHARACTERS_MAX) {
      this.wrong(null, '', `the document has more than ${CHARACTERS_MAX} characters`);
      return undefined;
    }
    try {
      const document = parseDocument(text, {
        schema: 'failsafe',
        lineCounter: this.#lines,
        // Checked here: the library compares every pair of keys.
        uniqueKeys: false,
        prettyErrors: false,
        keepSourceTokens: false,
        logLevel: 'error',
      });
      for (const { code, message, pos } of document.errors) {
        if (code === 'MULTIPLE_DOCS') {
          const what = 'only the first document of the text counts; remove what follows "---"';
          this.#warnings.add({ ...this.#at(pos[0]), path: '', text: what });
        } else this.#problems.add({ ...this.#at(pos[0]), path: '', text: `not YAML: ${message}` });
      }
      const { version, explicit } = document.directives.yaml;
      if (explicit === true && version !== '1.1') {
        this.wrong(null, '', `Velero reads no YAML ${version}; remove the line "%YAML ${version}"`);
      }
      if (this.#problems.all.length > 0) return undefined;
      this.#resolveAliases(document.contents);
      return document.contents;
    } catch (error) {
      const isDeep = error instanceof RangeError;
      this.wrong(null, '', isDeep ? TOO_DEEP : `not YAML: ${messageOf(error)}`);
      return undefined;
    }
  }

  /** Resolves all aliases in one walk. The library searches the whole document for each alias. */
  #resolveAliases(root: Node | null): void {
    const anchors = new Map<string, Node>();
    visit(root, {
      Node: (_key, node) => {
        if (isAlias(node)) {
          const target = anchors.get(node.source);
          if (target) this.#aliases.set(node, target);
        } else if (node.anchor !== undefined) anchors.set(node.anchor, node);
      },
    });
  }

  /** Position of a node; the first line if there is no node. */
  placeOf(node: Node | null | undefined): Place {
    return this.#at(node?.range?.[0] ?? 0);
  }

  #at(offset: number): Place {
    const { line } = this.#lines.linePos(offset);
    return { source: this.#source, line: Math.max(1, line) + this.#firstLine - 1 };
  }

  wrong(node: Node | null | undefined, path: string, text: string): void {
    this.#problems.add({ ...this.placeOf(node), path, text });
  }

  warn(node: Node | null | undefined, path: string, text: string): void {
    this.#warnings.add({ ...this.placeOf(node), path, text });
  }

  /** Resolves an alias and counts the values. Returns `null` also beyond a limit. */
  resolve(node: Node | null | undefined, path: string): Node | null {
    if (++this.#values > VALUES_MAX || path.split(/[.[]/, DEPTH_MAX + 1).length > DEPTH_MAX) {
      if (!this.#isTooLarge) this.wrong(node, '', TOO_DEEP);
      this.#isTooLarge = true;
      return null;
    }
    if (!node) return null;
    if (!isAlias(node)) return node;
    const target = this.#aliases.get(node);
    if (!target) this.wrong(node, path, `nothing before it has the anchor &${node.source}`);
    return target ?? null;
  }

  isNull(node: Node | null): boolean {
    return node === null || this.plain(node) === null;
  }

  /** The value of a scalar as in the Go library; undefined for lists and maps. */
  plain(node: Node | null): PlainValue | undefined {
    if (node === null) return null;
    if (!isScalar(node)) return undefined;
    const text = writtenAs(node);
    const { tag } = node;
    if (tag === undefined) return node.type === Scalar.PLAIN ? resolvePlain(text) : text;
    if (tag === '!' || tag === `${TAGS}str`) return text;
    const isIts = TAGGED.get(tag);
    const value = resolvePlain(text);
    if (isIts?.(value) === true) return value;
    const name = tag.replace(TAGS, '!!');
    const why = isIts
      ? `${name} does not fit ${JSON.stringify(cut(text))}`
      : `the tag ${name} means nothing here`;
    this.wrong(node, '', `${why}; remove it`);
    return text;
  }

  /**
   * The entries of a map, with merged maps; null has none. Duplicate keys are problems. If the node
   * is not a map, reports a problem and returns `undefined`.
   */
  entries(node: Node | null, path: string, what = 'a map'): Entry[] | undefined {
    if (this.isNull(node)) return [];
    if (!isMap(node)) {
      this.wrong(node, path, `must be ${what}, and is ${this.describe(node)}`);
      return undefined;
    }
    const entries: Entry[] = [];
    const merged: Entry[] = [];
    const seen = new Map<string, Node | null>();
    for (const { key: keyNode, value } of node.items as { key: Node; value: Node | null }[]) {
      const resolved = this.resolve(keyNode, path);
      const key = this.#keyOf(resolved);
      if (key === undefined) this.wrong(keyNode, path, 'a key must be a plain word');
      else if (key === '<<' && isScalar(resolved) && resolved.type === Scalar.PLAIN) {
        merged.push(...this.#merged(value, path));
      } else if (seen.has(key)) {
        const { line } = this.placeOf(seen.get(key));
        this.wrong(keyNode, joined(path, key), `stands twice, first in line ${line}; keep one`);
      } else {
        seen.set(key, keyNode);
        entries.push({ key, keyNode, value });
      }
    }
    for (const entry of merged) {
      if (seen.has(entry.key)) continue;
      seen.set(entry.key, entry.keyNode);
      entries.push(entry);
    }
    return entries;
  }

  #keyOf(node: Node | null): string | undefined {
    const value = this.plain(node);
    return value === undefined || value === null
      ? undefined
      : String(isScalar(node) ? node.value : '');
  }

  #merged(node: Node | null, path: string): Entry[] {
    const target = this.resolve(node, `${path}.<<`);
    const maps = isSeq(target) ? (target.items as Node[]) : [target];
    return maps.flatMap((each) => {
      const map = isSeq(target) ? this.resolve(each, `${path}.<<`) : each;
      if (isMap(map)) return this.entries(map, `${path}.<<`) ?? [];
      this.wrong(node, path, 'what is merged by << must be a map, or a list of maps');
      return [];
    });
  }

  /** Resolved elements; null has none. If not a list, returns `undefined` and adds a problem. */
  elements(
    node: Node | null,
    path: string,
    what = 'a list',
  ): { readonly node: Node | null; readonly path: string }[] | undefined {
    if (this.isNull(node)) return [];
    if (!isSeq(node)) {
      this.wrong(node, path, `must be ${what}, and is ${this.describe(node)}`);
      return undefined;
    }
    return (node.items as (Node | null)[]).map((item, i) => {
      const at = `${path}[${i}]`;
      return { node: this.resolve(item, at) ?? null, path: at };
    });
  }

  /** A scalar as written; `''` for null. Otherwise reports a problem and returns undefined. */
  text(node: Node | null, path: string): string | undefined {
    if (this.isNull(node)) return '';
    if (isScalar(node)) return writtenAs(node);
    this.wrong(node, path, `must be text, and is ${this.describe(node)}`);
    return undefined;
  }

  /**
   * A scalar inside conditions. Velero reads a value, writes it as YAML and reads that as text:
   * `017` becomes 15. Returns `null` for null.
   */
  conditionText(node: Node | null, path: string): string | null {
    const value = this.plain(node);
    if (value === undefined) {
      this.wrong(node, path, `must be text, and is ${this.describe(node)}`);
      return null;
    }
    if (value === null) return null;
    const text = goText(value);
    const written = isScalar(node) ? writtenAs(node) : '';
    if (text !== written) {
      this.warn(
        node,
        path,
        `${written} is read as ${text}; write "${written}" in quotes if that is meant`,
      );
    }
    return text;
  }

  /** Any value, as in JSON. */
  value(node: Node | null, path: string): unknown {
    if (isMap(node)) {
      const entries = this.entries(node, path) ?? [];
      return Object.fromEntries(
        entries.map(({ key, value }) => {
          const at = joined(path, key);
          return [key, this.value(this.resolve(value, at), at)];
        }),
      );
    }
    if (isSeq(node)) {
      return (this.elements(node, path) ?? []).map((each) => this.value(each.node, each.path));
    }
    const value = this.plain(node);
    return typeof value === 'bigint' ? numberOf(value) : value;
  }

  describe(node: Node | null): string {
    if (isMap(node)) return 'a map';
    if (isSeq(node)) return 'a list';
    const value = this.plain(node);
    if (value === null) return 'empty';
    if (typeof value === 'boolean') return `${String(value)}, which is no text`;
    if (typeof value === 'number' || typeof value === 'bigint') return `the number ${value}`;
    return `the text ${JSON.stringify(cut(goText(value ?? '')))}`;
  }
}

const TAGS = 'tag:yaml.org,2002:';
const TAGGED = new Map<string, (value: PlainValue) => boolean>([
  [`${TAGS}int`, (value) => typeof value === 'bigint'],
  [`${TAGS}float`, (value) => typeof value === 'number' || typeof value === 'bigint'],
  [`${TAGS}bool`, (value) => typeof value === 'boolean'],
  [`${TAGS}null`, (value) => value === null],
]);

/** The text of a scalar, regardless of its tag. */
const writtenAs = (node: Scalar): string => node.source ?? String(node.value);

const TOO_DEEP = 'the document is too large or too deep, or grows too much by its aliases';
const SHOWN_MAX = 60;
/** Shortens a text for a message. */
export const cut = (text: string): string =>
  text.length <= SHOWN_MAX ? text : `${text.slice(0, SHOWN_MAX)}…`;

export const joined = (path: string, key: string): string =>
  path === '' ? cut(key) : `${path}.${cut(key)}`;

const numberOf = (value: bigint): number | string => {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : String(value);
};
