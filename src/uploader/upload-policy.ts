import {
  type Compressor,
  compressorByName,
  splitterSpec,
  type SplitterSpec,
} from '../codec/index.ts';
import { compressorForFile, type Policy } from '../snapshot/index.ts';

/** What a policy says of how bytes are stored; see Kopia's policies. */

/** Files above so many bytes are stored in parts of that size, side by side. Below zero is how Kopia's users switch parts off. */
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
  return wanted ?? (algorithm ? splitterSpec(algorithm) : repository.splitter);
}

/** What we only read is written with the nearest that we can: readers go by the number in front. */
function compressorByNameForWriting(name: string): Compressor | undefined {
  const compressor = compressorByName(name);
  return compressor && !compressor.compress ? compressorByName('zstd-fastest') : compressor;
}
