import { isMap, isScalar, LineCounter, parseDocument, Scalar } from 'yaml';
import { oneKey, parseVolumePolicies, type VolumePolicies } from './policies.ts';
import { BadVolumePolicyError } from './problems.ts';

/** No ConfigMap with more can be stored: etcd takes 1.5 MiB. Our choice. */
const CHARACTERS_MAX = 3 << 19;

/**
 * A file with policies, or with the manifest of the ConfigMap that has them: lines are those of the
 * file in both cases, where the manifest has the policies as a block (`|`). Throws
 * `BAD_VOLUME_POLICY`.
 */
export function readPolicyFile(text: string, source: string): VolumePolicies {
  // The policies themselves have no such key.
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

/** Undefined for what cannot be read as a map: then the other reader says what is wrong with it. */
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
    // Too deep for its reader.
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}
