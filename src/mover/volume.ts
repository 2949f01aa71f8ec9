import * as fs from 'node:fs/promises';
import { CodedError, formatBytes, type Logger } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';
import type { Snapshot } from '../snapshot/index.ts';
import type { Progress } from './progress.ts';

export interface VolumeMoveOptions {
  readonly repository: Repository;
  /** Mount point of the volume, or path of its device. */
  readonly path: string;
  readonly isBlock: boolean;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** `spec.dataMoverConfig`, or `spec.uploaderSettings`. */
  readonly config: Readonly<Record<string, string>>;
  /** Called at a bounded rate, never going back. The last call has all bytes done. */
  readonly onProgress: (progress: Progress) => void;
  readonly progressIntervalMs: number;
  /** The move fails if no byte, entry or answer of the storage arrives for this long. */
  readonly stallMs: number;
  /** Time that an aborted move may take to stop without a sign of life; default 30 s. */
  readonly graceMs?: number;
  /**
   * Called before the volume is touched, and again when all bytes are moved. Its error ends the
   * move. Must end within 25 minutes.
   */
  readonly assertUsable?: (when: 'before' | 'after', signal: AbortSignal) => Promise<void>;
}

/** Throws `NO_VOLUME`. */
export async function assertVolume(path: string, isBlock: boolean): Promise<void> {
  let stat: Awaited<ReturnType<typeof fs.stat>>;
  try {
    stat = await fs.stat(path);
  } catch (cause) {
    throw new CodedError('NO_VOLUME', `the volume does not exist: ${path}`, { cause });
  }
  if (isBlock && !stat.isBlockDevice() && !stat.isFile()) {
    throw new CodedError('NO_VOLUME', `source path ${path} is not a block device`);
  }
  if (!isBlock && !stat.isDirectory()) {
    throw new CodedError('NO_VOLUME', `source path ${path} is not a directory`);
  }
}

/** The tag of snapshots by Velero's block data mover. */
const BLOCK_UPLOADER = 'velero-block';

/**
 * Throws `BLOCK_MOVER_SNAPSHOT`. A block data mover stores a directory with the device as one file,
 * which must not be written into a volume.
 */
export function assertReadable({ id, tags }: Snapshot): void {
  if (tags?.['snapshot-uploader'] !== BLOCK_UPLOADER) return;
  throw new CodedError(
    'BLOCK_MOVER_SNAPSHOT',
    `snapshot ${id} was stored by Velero's block data mover (${BLOCK_UPLOADER}), and Longshore cannot restore it: restore it with the node-agent of Velero 1.19`,
  );
}

export const describeMove = (bytes: number, seconds: number): string =>
  `${formatBytes(bytes)} in ${seconds.toFixed(1)} s`;
