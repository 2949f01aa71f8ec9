import type { Node } from 'yaml';
import { RE2JS } from 're2js';
import { NameLists } from '../../backup/index.ts';
import {
  CodedError,
  compileGlob,
  type Glob,
  globAlternatives,
  messageOf,
  parseJsonExact,
  type Selector,
  selectorOf,
} from '../../base/index.ts';
import { PATCH_FAILED, type PatchOperation } from '../../kube/index.ts';
import { cut, type Field, fieldsOf, YamlDocument } from '../../volume-policy/index.ts';
import { jsonOf, textOf } from './yaml-values.ts';

export interface ModifierRule {
  readonly namespaces: NameLists;
  readonly groupResource: Glob;
  /** The pattern of `groupResource`, for messages. */
  readonly groupText: string;
  /** Undefined if every name matches. */
  readonly name: ((name: string) => boolean) | undefined;
  /** The alternatives of `groupResource` and `resourceNameRegex`, if there are several. */
  readonly alternatives: {
    readonly groupResource: readonly Alternative[];
    readonly name: readonly Alternative[];
  };
  readonly selector: Selector | undefined;
  /** Tests that must all pass. */
  readonly matches: readonly PatchOperation[];
  readonly patch: ModifierPatch;
}

export interface Alternative {
  readonly text: string;
  readonly matches: (name: string) => boolean;
}

export type ModifierPatch =
  | { readonly kind: 'json'; readonly operations: readonly PatchOperation[] }
  | { readonly kind: 'merge' | 'strategic'; readonly patches: readonly object[] };

/** Problems in the message, which is part of a status. Our choice, as for resource policies. */
const IN_MESSAGE_MAX = 10;

/**
 * Reads the rules of a document. Throws `BAD_MODIFIERS` with all problems, and how to correct them.
 * Also refuses rules that Velero accepts and then fails on each item: unreadable patterns, rules
 * without patches, invalid JSON values.
 */
export function readRules(text: string, source: string): readonly ModifierRule[] {
  const document = new YamlDocument(text, { source });
  const rules = document.root === undefined ? [] : new Reader(document).rules(document.root);
  const { problems } = document;
  if (problems.length === 0) return rules;
  const shown = problems.slice(0, IN_MESSAGE_MAX).map(({ line, path, text: what }) => {
    const where = path === '' ? '' : `${path}: `;
    return `line ${line}: ${where}${what}`;
  });
  const more = problems.length - shown.length;
  if (more > 0) shown.push(`and ${more} more`);
  throw new CodedError(
    'BAD_MODIFIERS',
    `invalid resource modifiers in ${source}: ${shown.join('; ')}`,
  );
}

type Fields = ReadonlyMap<string, Field>;

const PATCHES = ['patches', 'mergePatches', 'strategicPatches'] as const;
const CONDITIONS = ['namespaces', 'groupResource', 'resourceNameRegex', 'labelSelector', 'matches'];
const OPERATIONS = ['add', 'remove', 'replace', 'move', 'copy', 'test'];

class Reader {
  readonly #document: YamlDocument;

  constructor(document: YamlDocument) {
    this.#document = document;
  }

  rules(root: Node | null): ModifierRule[] {
    const document = this.#document;
    const fields = fieldsOf(document, root, '', ['version', 'resourceModifierRules'], 'a map');
    if (!fields) return [];
    const version = this.#text(fields, 'version', '');
    if (version.toLowerCase() !== 'v1') {
      const what = `unsupported resource modifier version ${JSON.stringify(cut(version))}: it must be v1`;
      document.wrong(fields.get('version')?.node, 'version', what);
    }
    const list = 'resourceModifierRules';
    const node = fields.get(list)?.node ?? null;
    const elements = document.elements(node, list, 'a list of rules');
    if (elements?.length === 0) {
      document.wrong(node, list, 'resource modifier rules cannot be empty: write at least one');
    }
    return (elements ?? []).flatMap((each) => this.#rule(each.node, each.path) ?? []);
  }

  #rule(node: Node | null, path: string): ModifierRule | undefined {
    const document = this.#document;
    const fields = fieldsOf(document, node, path, ['conditions', ...PATCHES], 'a rule');
    if (!fields) return undefined;
    const at = `${path}.conditions`;
    const own = fieldsOf(document, fields.get('conditions')?.node ?? null, at, CONDITIONS);
    const conditions = own ?? new Map<string, Field>();
    const given = PATCHES.filter((name) => !this.#isEmpty(fields, name));
    if (given.length > 1) {
      const what = `only one of patches, mergePatches, strategicPatches can be specified, and there are ${given.join(' and ')}: write a rule for each`;
      document.wrong(node, path, what);
    }
    if (given.length === 0) {
      document.wrong(
        node,
        path,
        'no patch data found: a rule needs patches, mergePatches or strategicPatches',
      );
    }
    const groupText = this.#text(conditions, 'groupResource', at);
    return {
      namespaces: new NameLists(this.#texts(conditions, 'namespaces', at)),
      groupResource: this.#glob(conditions, node, at),
      groupText,
      name: this.#regex(conditions, at),
      alternatives: {
        groupResource: globsIn(groupText),
        name: namesIn(this.#text(conditions, 'resourceNameRegex', at)),
      },
      selector: this.#selector(conditions, at),
      matches: this.#matches(conditions, at),
      patch: this.#patch(fields, given[0] ?? 'patches', path),
    };
  }

  #isEmpty(fields: Fields, name: string): boolean {
    const node = fields.get(name)?.node ?? null;
    return this.#document.isNull(node) || (node !== null && 'items' in node && isNone(node.items));
  }

  #text(fields: Fields, name: string, path: string): string {
    const at = path === '' ? name : `${path}.${name}`;
    return textOf(this.#document, fields.get(name)?.node ?? null, at) ?? '';
  }

  #texts(fields: Fields, name: string, path: string): string[] {
    const node = fields.get(name)?.node ?? null;
    const elements = this.#document.elements(node, `${path}.${name}`, 'a list of texts') ?? [];
    return elements.map((each) => textOf(this.#document, each.node, each.path) ?? '');
  }

  #glob(fields: Fields, rule: Node | null, path: string): Glob {
    const text = this.#text(fields, 'groupResource', path);
    const at = `${path}.groupResource`;
    const node = fields.get('groupResource')?.node ?? rule;
    if (text === '') {
      const what =
        'groupResource cannot be empty: name a resource such as pods or deployments.apps';
      this.#document.wrong(node, at, what);
    }
    try {
      return compileGlob(text, TYPE_PARTS);
    } catch (error) {
      this.#document.wrong(node, at, messageOf(error));
      return () => false;
    }
  }

  #regex(fields: Fields, path: string): ModifierRule['name'] {
    const text = this.#text(fields, 'resourceNameRegex', path);
    if (text === '') return undefined;
    try {
      const compiled = RE2JS.compile(text);
      return (name) => compiled.matcher(name).find();
    } catch (error) {
      const what = `${JSON.stringify(cut(text))} is no regular expression of Go: ${messageOf(error)}`;
      this.#document.wrong(
        fields.get('resourceNameRegex')?.node,
        `${path}.resourceNameRegex`,
        what,
      );
      return undefined;
    }
  }

  #selector(fields: Fields, path: string): Selector | undefined {
    const document = this.#document;
    const node = fields.get('labelSelector')?.node ?? null;
    if (document.isNull(node)) return undefined;
    const at = `${path}.labelSelector`;
    const own = fieldsOf(document, node, at, ['matchLabels', 'matchExpressions']);
    if (!own) return undefined;
    const labels = own.get('matchLabels')?.node ?? null;
    const pairs = document.entries(labels, `${at}.matchLabels`) ?? [];
    const expressions = own.get('matchExpressions')?.node ?? null;
    const elements = document.elements(expressions, `${at}.matchExpressions`) ?? [];
    const selector = {
      matchLabels: Object.fromEntries(
        pairs.map(({ key, value }) => {
          const where = `${at}.matchLabels.${cut(key)}`;
          return [key, textOf(document, document.resolve(value, where), where) ?? ''];
        }),
      ),
      matchExpressions: elements.flatMap((each) => {
        const parts = fieldsOf(document, each.node, each.path, ['key', 'operator', 'values']);
        if (!parts) return [];
        return [
          {
            key: this.#text(parts, 'key', each.path),
            operator: this.#text(parts, 'operator', each.path),
            values: this.#texts(parts, 'values', each.path),
          },
        ];
      }),
    };
    try {
      return selectorOf(selector);
    } catch (error) {
      document.wrong(node, at, messageOf(error));
      return undefined;
    }
  }

  #matches(fields: Fields, path: string): PatchOperation[] {
    const document = this.#document;
    const at = `${path}.matches`;
    const elements = document.elements(fields.get('matches')?.node ?? null, at, 'a list of tests');
    return (elements ?? []).flatMap((each) => {
      const own = fieldsOf(document, each.node, each.path, ['path', 'value']);
      if (!own) return [];
      const where = this.#pointer(own, each, 'path', 'path is required for match rule');
      const value = this.#text(own, 'value', each.path);
      return this.#operation({ operation: 'test', from: '', path: where, value }, each);
    });
  }

  #patch(fields: Fields, name: (typeof PATCHES)[number], path: string): ModifierPatch {
    const document = this.#document;
    const node = fields.get(name)?.node ?? null;
    const elements = document.elements(node, `${path}.${name}`, 'a list of patches') ?? [];
    if (name === 'patches') {
      return { kind: 'json', operations: elements.flatMap((each) => this.#step(each)) };
    }
    return {
      kind: name === 'mergePatches' ? 'merge' : 'strategic',
      patches: elements.flatMap((each) => this.#data(each)),
    };
  }

  #step(element: Element): PatchOperation[] {
    const document = this.#document;
    const names = ['operation', 'from', 'path', 'value'];
    const own = fieldsOf(document, element.node, element.path, names);
    if (!own) return [];
    const operation = this.#text(own, 'operation', element.path);
    const isKnown = OPERATIONS.includes(operation.toLowerCase());
    if (!isKnown) {
      const what =
        operation === ''
          ? 'operation cannot be empty'
          : `unsupported operation ${JSON.stringify(cut(operation))}`;
      const at = `${element.path}.operation`;
      const where = own.get('operation')?.node ?? element.node;
      document.wrong(where, at, `${what}: it is add, remove, replace, move, copy or test`);
    }
    const path = this.#pointer(own, element, 'path', 'path cannot be empty');
    const needsFrom = ['move', 'copy'].includes(operation.toLowerCase());
    const from = needsFrom
      ? this.#pointer(own, element, 'from', `from cannot be empty for ${operation}`)
      : this.#text(own, 'from', element.path);
    const value = this.#text(own, 'value', element.path);
    return isKnown ? this.#operation({ operation, from, path, value }, element) : [];
  }

  /** A JSON pointer. */
  #pointer(fields: Fields, element: Element, name: string, ifEmpty: string): string {
    const text = this.#text(fields, name, element.path);
    if (text.startsWith('/')) return text;
    const what = text === '' ? ifEmpty : `${JSON.stringify(cut(text))} does not begin with a slash`;
    const node = fields.get(name)?.node ?? element.node;
    const at = `${element.path}.${name}`;
    this.#document.wrong(node, at, `${what}: write a place such as /spec/replicas`);
    return text;
  }

  #operation(written: Parameters<typeof operationOf>[0], element: Element): PatchOperation[] {
    try {
      return [operationOf(written)];
    } catch {
      const text = JSON.stringify(cut(written.value));
      const what = `with the value ${text} this is no JSON patch: Velero writes numbers, true, false, null, {} and [] as they stand, so that they must be JSON, and all else between quotes with JSON's escapes; put quotes inside of quotes around a text`;
      this.#document.wrong(element.node, element.path, what);
      return [];
    }
  }

  #data(element: Element): object[] {
    const document = this.#document;
    const own = fieldsOf(document, element.node, element.path, ['patchData']);
    if (!own) return [];
    const text = this.#text(own, 'patchData', element.path);
    const at = `${element.path}.patchData`;
    const node = own.get('patchData')?.node ?? element.node;
    const inner = new YamlDocument(text, { source: document.placeOf(node).source });
    const value = inner.root === undefined ? undefined : jsonOf(inner, inner.root, '');
    for (const { line, path, text: what } of inner.problems) {
      document.wrong(node, at, `line ${line} of it: ${path === '' ? '' : `${path}: `}${what}`);
    }
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return [value];
    if (inner.problems.length === 0) {
      document.wrong(
        node,
        at,
        'must be YAML or JSON of an object, such as \'{"spec": {"replicas": 2}}\'',
      );
    }
    return [];
  }
}

const TYPE_PARTS = { separator: '.' };

/** The patterns in the braces of a `groupResource`. Empty for a pattern with an error. */
function globsIn(pattern: string): Alternative[] {
  try {
    const texts = [...new Set(globAlternatives(pattern))];
    if (texts.length < 2) return [];
    return texts.map((text) => ({ text, matches: compileGlob(text, TYPE_PARTS) }));
  } catch {
    return [];
  }
}

/** The parts of a regular expression such as `^(one|other)$`. Empty for all other forms. */
function namesIn(pattern: string): Alternative[] {
  const [, before = '', inner = '', after = ''] = /^(\^?)\((?:\?:)?([^()]*)\)(\$?)$/.exec(
    pattern,
  ) ?? [undefined, '', pattern];
  const texts = [...new Set(inner.split('|'))];
  if (texts.length < 2 || !texts.every((text) => /^[^()[\]{}]+$/.test(text))) return [];
  try {
    return texts.map((text) => {
      const compiled = RE2JS.compile(`${before}(?:${text})${after}`);
      return { text, matches: (name) => compiled.matcher(name).find() };
    });
  } catch {
    return [];
  }
}

interface Element {
  readonly node: Node | null;
  readonly path: string;
}

const isNone = (items: unknown): boolean => Array.isArray(items) && items.length === 0;

/** An operation in a rule: every value is a text. */
interface WrittenOperation {
  readonly operation: string;
  readonly from: string;
  readonly path: string;
  readonly value: string;
}

/**
 * Parses an operation. Velero (internal/resourcemodifiers/json_patch.go, ToString) writes its parts
 * into a text and parses it as JSON. Quoted parts may have JSON's escapes, and other parts must be
 * JSON. Throws `PATCH_FAILED` if the text is not JSON.
 */
function operationOf({ operation, from, path, value }: WrittenOperation): PatchOperation {
  return {
    // Velero's check accepts `Add`, and then fails on every item.
    op: operation.toLowerCase(),
    from: parsed(`"${from}"`) as string,
    path: parsed(`"${path}"`) as string,
    value: valueOf(value),
  };
}

function valueOf(value: string): unknown {
  const isQuoted = value.startsWith('"') && value.endsWith('"');
  if (isQuoted) return parsed(`"${value.replace(/^"/, '').replace(/"$/, '')}"`);
  return parsed(isRaw(value) ? value : `"${value}"`);
}

const isRaw = (value: string): boolean =>
  value === 'null' || /^(true|false)$/i.test(value) || /^[{[]/.test(value) || isGoFloat(value);

/** strconv.ParseFloat accepts more numbers than JSON. */
function isGoFloat(text: string): boolean {
  if (/^[+-]?(inf|infinity)$/i.test(text) || /^nan$/i.test(text)) return true;
  if (/^[+-]?0x_?([0-9a-f_]+\.?[0-9a-f_]*|\.[0-9a-f_]+)p[+-]?\d+$/i.test(text)) return true;
  const isDecimal = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text);
  return isDecimal && Number.isFinite(Number(text));
}

function parsed(text: string): unknown {
  try {
    const list = parseJsonExact(`[${text}]`) as unknown[];
    // A comma in it would add parts to the text.
    if (list.length === 1) return list[0];
  } catch (cause) {
    throw new CodedError(PATCH_FAILED, 'error in decoding json patch invalid state detected', {
      cause,
    });
  }
  throw new CodedError(PATCH_FAILED, 'error in decoding json patch invalid state detected');
}
