import { isMap, isScalar, LineCounter, parseDocument, Scalar } from 'yaml';
import { oneKey, parseVolumePolicies, type VolumePolicies } from './policies.ts';
import { BadVolumePolicyError } from './problems.ts';

/** A larger ConfigMap cannot be stored: etcd allows 1.5 MiB. Our choice. */
const CHARACTERS_MAX = 3 << 19;

/**
 * Reads a file with policies, or with the manifest of their ConfigMap. Lines are those of the file;
 * in a manifest, only if the policies are a block (`|`). Throws `BAD_VOLUME_POLICY`.
 */
export function readPolicyFile(text: string, source: string): VolumePolicies {
  // Policies have no `kind` key.
  if (!/^["']?kind["']?\s*:/m.test(text) && !text.trimStart().startsWith('{')) {
    return parseVolumePolicies(text, { source });
  }
  const lines = new LineCounter();
  const wrong = (offset: number, path: string, problem: string): BadVolumePolicyError => {
    const { line } = lines.linePos(offset);
    return new BadVolumePolicyError(source, [
      { source, line: Math.max(1, line), path, text: problem },
    ]);
  };
  if (text.length > CHARACTERS_MAX) throw wrong(0, '', 'the file is too large for a ConfigMap');
  const manifest = manifestIn(text, lines);
  if (!manifest?.has('kind')) return parseVolumePolicies(text, { source });
  const kind: unknown = manifest.get('kind');
  if (kind !== 'ConfigMap') {
    throw wrong(0, 'kind', `must be ConfigMap, and is ${JSON.stringify(kind)}`);
  }
  const data = manifest.get('data', true);
  const items = isMap(data) ? data.items : [];
  const value = items[0]?.value;
  if (items.length !== 1 || !isScalar(value)) {
    const offset = isMap(data) ? (data.range?.[0] ?? 0) : 0;
    throw wrong(offset, 'data', oneKey('the ConfigMap', items.length));
  }
  const isBlock = value.type === Scalar.BLOCK_LITERAL;
  const firstLine = lines.linePos(value.range?.[0] ?? 0).line + (isBlock ? 1 : 0);
  return parseVolumePolicies(String(value.value), { source, firstLine });
}

/** Undefined if the text is not a map: the other reader then reports the problem. */
function manifestIn(text: string, lineCounter: LineCounter) {
  try {
    const { contents, errors } = parseDocument(text, {
      lineCounter,
      uniqueKeys: false,
      prettyErrors: false,
      logLevel: 'error',
    });
    const isGood = errors.every(({ code }) => code === 'MULTIPLE_DOCS');
    return isGood && isMap(contents) ? contents : undefined;
  } catch (error) {
    // The document is too deep for the library.
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}
