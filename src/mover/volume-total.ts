import * as fs from 'node:fs/promises';
import { listReadableSnapshots, type SourceInfo } from '../snapshot/index.ts';
import { deviceBytes, EstimateAhead, type UploadCounters } from '../uploader/index.ts';
import { isOwnFileSystem } from './same-volume.ts';
import type { VolumeMoveOptions } from './volume.ts';

type Looked = Pick<VolumeMoveOptions, 'repository' | 'path' | 'isBlock'>;

/**
 * How much there will be to store of a volume, in bytes: a guess at first, and exact when the
 * upload has listed everything. Velero's CLI shows a share of it, so that it is never less than
 * what is done.
 */
export class VolumeTotal {
  readonly #counters: UploadCounters;
  #guess: number | undefined;
  #ahead: EstimateAhead | undefined;

  constructor(counters: UploadCounters) {
    this.#counters = counters;
  }

  /**
   * Looks at the volume before its upload begins; where nobody knows how much it holds, a thread
   * counts it beside the upload.
   */
  async look(volume: Looked, source: SourceInfo): Promise<void> {
    const guess = await guessOf(volume, source);
    this.#guess = guess ?? 0;
    if (guess !== undefined) return;
    const { repository, path } = volume;
    this.#ahead = new EstimateAhead({ repository, source, path, counters: this.#counters });
  }

  /** Of which are done: read, taken over, or holes of files. */
  get doneBytes(): number {
    const { bytesRead, cachedBytes, bytesInHoles } = this.#counters;
    return bytesRead + cachedBytes + bytesInHoles;
  }

  /** Undefined before it is known. */
  get bytes(): number | undefined {
    if (this.#guess === undefined) return undefined;
    const { bytesFound, isListed } = this.#counters;
    const found = Math.max(bytesFound, this.doneBytes);
    if (isListed) {
      this.#ahead?.stop();
      return found;
    }
    const most = Math.max(this.#guess, this.#ahead?.report?.bytes ?? 0, found);
    return most === 0 ? undefined : most;
  }

  /** Ends what counts. May be called again. */
  stop(): void {
    this.#ahead?.stop();
  }
}

/**
 * The size of a device; of a mounted volume what its file system says is in use; else what the last
 * snapshot had. Undefined where nothing tells: of a directory of a larger file system, which has no
 * snapshot yet.
 */
async function guessOf(
  { repository, path, isBlock }: Looked,
  source: SourceInfo,
): Promise<number | undefined> {
  if (isBlock) {
    const stat = await fs.stat(path);
    return stat.isBlockDevice() ? deviceBytes(path) : stat.size;
  }
  if (await isOwnFileSystem(path)) {
    const { blocks, bfree, bsize } = await fs.statfs(path);
    return (blocks - bfree) * bsize;
  }
  const { snapshots } = await listReadableSnapshots(repository, { source });
  return snapshots.findLast(({ incomplete }) => !incomplete)?.stats.totalSize;
}
