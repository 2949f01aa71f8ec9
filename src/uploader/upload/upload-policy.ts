import { isCode, type Logger } from '../../base/index.ts';
import {
  type Compressor,
  compressorByName,
  splitterSpec,
  type SplitterSpec,
} from '../../codec/index.ts';
import { compressorForFile, type Policy, type PolicyTree } from '../../snapshot/index.ts';

/** Parts of a policy that concern stored bytes; see Kopia's policies. */

/** Files above this size are stored in parallel parts. In Kopia a negative value disables parts. */
export function partBytesOf(policy: Policy): number {
  const bytes = Number(policy.upload.parallelUploadAboveSize ?? 0);
  return bytes > 0 ? bytes : Number.POSITIVE_INFINITY;
}

export function metadataCompressor(policy: Policy): Compressor | undefined {
  return compressorByNameForWriting(policy.metadataCompression.compressorName ?? 'none');
}

export function fileCompressor(
  policy: Policy,
  file: { readonly name: string; readonly sizeBytes: number },
): Compressor | undefined {
  return compressorByNameForWriting(compressorForFile(policy, file.name, file.sizeBytes));
}

/** The requested splitter, else the policy's, else the repository's. */
export function splitterOf(
  policy: Policy,
  wanted: SplitterSpec | undefined,
  repository: { readonly splitter: SplitterSpec },
): SplitterSpec {
  const { algorithm } = policy.splitter;
  return wanted ?? (algorithm ? knownSplitter(algorithm) : undefined) ?? repository.splitter;
}

/** Splitters that files of the tree may use, besides the repository's. */
export const splittersOf = (policies: PolicyTree): SplitterSpec[] =>
  policies.splitterNames().flatMap((name) => knownSplitter(name) ?? []);

/**
 * Warns of settings without effect. Policies outlive programs, and may have names that only older
 * or newer versions of Kopia know. Only clients of Kopia run actions, if they are allowed to. So
 * the preparation, such as a database dump, is missing.
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

/** Replaces a compressor that Longshore only reads. Readers use the number in the header. */
function compressorByNameForWriting(name: string): Compressor | undefined {
  const compressor = ifKnown(() => compressorByName(name), 'UNKNOWN_COMPRESSION')?.found;
  return compressor && !compressor.compress ? compressorByName('zstd-fastest') : compressor;
}
