import { isCode, type Logger } from '../base/index.ts';
import {
  type Compressor,
  compressorByName,
  splitterSpec,
  type SplitterSpec,
} from '../codec/index.ts';
import { compressorForFile, type Policy, type PolicyTree } from '../snapshot/index.ts';

/** What a policy says of how bytes are stored; see Kopia's policies. */

/**
 * Files above so many bytes are stored in parts of that size, side by side. Below zero is how
 * Kopia's users switch parts off.
 */
export function partBytesOf(policy: Policy): number {
  const bytes = Number(policy.upload.parallelUploadAboveSize ?? 0);
  return bytes > 0 ? bytes : Number.POSITIVE_INFINITY;
}

export function metadataCompressor(policy: Policy): Compressor | undefined {
  return compressorByNameForWriting(policy.metadataCompression.compressorName ?? 'zstd-fastest');
}

export function fileCompressor(
  policy: Policy,
  file: { readonly name: string; readonly sizeBytes: number },
): Compressor | undefined {
  return compressorByNameForWriting(compressorForFile(policy, file.name, file.sizeBytes));
}

/** The splitter that was asked for, else the policy's, else the repository's. */
export function splitterOf(
  policy: Policy,
  wanted: SplitterSpec | undefined,
  repository: { readonly splitter: SplitterSpec },
): SplitterSpec {
  const { algorithm } = policy.splitter;
  return wanted ?? (algorithm ? knownSplitter(algorithm) : undefined) ?? repository.splitter;
}

/** Splitters that a file of the tree may be cut by, beside the repository's. */
export const splittersOf = (policies: PolicyTree): SplitterSpec[] =>
  policies.splitterNames().flatMap((name) => knownSplitter(name) ?? []);

/**
 * Policies outlive programs: a name that Kopia has dropped or will have means for it what stands in
 * the warning. Actions are run by none but clients of Kopia's that were told to: what they make
 * ready, a dump of a database perhaps, is not.
 */
export function warnOfUnmet(policies: PolicyTree, logger: Logger): void {
  for (const action of new Set(policies.actionNames())) {
    logger.warn({ action }, 'a policy has a Kopia action; it is not run');
  }
  for (const splitter of new Set(policies.splitterNames())) {
    if (knownSplitter(splitter)) continue;
    const text = "a policy names an unknown splitter; using the repository's";
    logger.warn({ splitter }, text);
  }
  for (const compression of new Set(policies.compressorNames())) {
    if (ifKnown(() => compressorByName(compression), 'UNKNOWN_COMPRESSION')) continue;
    const text = 'a policy names an unknown compression; storing files uncompressed';
    logger.warn({ compression }, text);
  }
}

function knownSplitter(name: string): SplitterSpec | undefined {
  return ifKnown(() => splitterSpec(name), 'UNKNOWN_SPLITTER')?.found;
}

function ifKnown<T>(find: () => T, code: string): { readonly found: T } | undefined {
  try {
    return { found: find() };
  } catch (error) {
    if (!isCode(error, code)) throw error;
    return undefined;
  }
}

/** What we only read is written with the nearest that we can: readers go by the number in front. */
function compressorByNameForWriting(name: string): Compressor | undefined {
  const compressor = ifKnown(() => compressorByName(name), 'UNKNOWN_COMPRESSION')?.found;
  return compressor && !compressor.compress ? compressorByName('zstd-fastest') : compressor;
}
