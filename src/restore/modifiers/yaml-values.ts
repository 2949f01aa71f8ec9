import { isMap, isScalar, isSeq, type Node } from 'yaml';
import { joined, YamlDocument } from '../../volume-policy/index.ts';
import { CodedError, numberText, parseJsonExact } from '../../base/index.ts';

/** Booleans of YAML 1.1 only. sigs.k8s.io/yaml accepts them through go.yaml.in/yaml/v2. */
const TRUE = new Set(['y', 'Y', 'yes', 'Yes', 'YES', 'on', 'On', 'ON']);
const FALSE = new Set(['n', 'N', 'no', 'No', 'NO', 'off', 'Off', 'OFF']);

/** A scalar as sigs.k8s.io/yaml parses it, or undefined. Numbers beyond 2^53 keep their digits. */
function scalarOf(document: YamlDocument, node: Node | null): unknown {
  const value = document.plain(node);
  if (typeof value === 'bigint') return numberOf(value);
  if (typeof value === 'object' && value !== null) return writtenAs(node);
  if (typeof value !== 'string' || !isScalar(node) || node.type !== 'PLAIN') return value;
  if (node.tag !== undefined) return value;
  if (TRUE.has(value)) return true;
  return FALSE.has(value) ? false : value;
}

const writtenAs = (node: Node | null): string =>
  isScalar(node) ? (node.source ?? String(node.value)) : '';

const numberOf = (value: bigint): unknown => (parseJsonExact(`[${value}]`) as unknown[])[0];

/**
 * The fewest digits for a 32-bit float, as `strconv.FormatFloat(value, 'g', -1, 32)` writes.
 * Integers are not written this way.
 */
function goFloat32(value: number): string {
  if (Number.isInteger(value)) return String(value);
  const single = Math.fround(value);
  for (let digits = 1; digits <= 9; digits++) {
    const text = single.toPrecision(digits);
    if (Math.fround(Number(text)) === single) return String(Number(text));
  }
  return String(value);
}

/** Numbers and booleans count as text, and null as `''`. Lists and maps are a problem. */
export function textOf(
  document: YamlDocument,
  node: Node | null,
  path: string,
): string | undefined {
  const value = scalarOf(document, node);
  if (value === null) return '';
  if (value === undefined) {
    document.wrong(node, path, `must be text, and is ${document.describe(node)}`);
    return undefined;
  }
  if (typeof value === 'object') return numberText(value);
  if (typeof value === 'boolean') return value ? 'true' : 'false';
  if (typeof value !== 'number') return typeof value === 'string' ? value : '';
  return Number.isFinite(value) ? goFloat32(value) : writtenAs(node);
}

/** Converts any node to JSON. */
export function jsonOf(document: YamlDocument, node: Node | null, path: string): unknown {
  if (isMap(node)) {
    const fields: Record<string, unknown> = {};
    for (const { key, value } of document.entries(node, path) ?? []) {
      const at = joined(path, key);
      const inner = jsonOf(document, document.resolve(value, at), at);
      Object.defineProperty(fields, key, {
        value: inner,
        enumerable: true,
        configurable: true,
        writable: true,
      });
    }
    return fields;
  }
  if (isSeq(node)) {
    return (document.elements(node, path) ?? []).map((each) =>
      jsonOf(document, each.node, each.path),
    );
  }
  const value = scalarOf(document, node);
  if (typeof value !== 'number' || Number.isFinite(value)) return value;
  document.wrong(node, path, `${writtenAs(node)} cannot be written as JSON; put it in quotes`);
  return null;
}

/**
 * Reads an object in YAML or JSON, such as a part of a pod in a ConfigMap. Returns `{}` for an
 * empty document. Throws `BAD_YAML` with all problems.
 */
export function readYamlObject(text: string, source: string): Readonly<Record<string, unknown>> {
  const document = new YamlDocument(text, { source });
  const value = document.root === undefined ? undefined : jsonOf(document, document.root, '');
  const wrong = document.problems.map(({ line, path, text: what }) => {
    return `line ${line}: ${path === '' ? '' : `${path}: `}${what}`;
  });
  if (wrong.length > 0) throw new CodedError('BAD_YAML', `${source}: ${wrong.join('; ')}`);
  if (value === null) return {};
  if (typeof value === 'object' && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new CodedError('BAD_YAML', `${source} must be an object`);
}
