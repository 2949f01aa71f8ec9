import * as fs from 'node:fs/promises';
import { listReadableSnapshots, type SourceInfo } from '../snapshot/index.ts';
import { deviceBytes, EstimateAhead, type UploadCounters } from '../uploader/index.ts';
import { isOwnFileSystem } from './same-volume.ts';
import type { VolumeMoveOptions } from './volume.ts';

type Looked = Pick<VolumeMoveOptions, 'repository' | 'path' | 'isBlock'>;

/**
 * Bytes to store from a volume: a guess at first, exact once the upload has listed everything.
 * Never less than the bytes done, because Velero's CLI shows a percentage.
 */
export class VolumeTotal {
  readonly #counters: UploadCounters;
  #guess: number | undefined;
  #ahead: EstimateAhead | undefined;

  constructor(counters: UploadCounters) {
    this.#counters = counters;
  }

  /** Estimates the volume before its upload. Without an estimate, a thread counts it meanwhile. */
  async look(volume: Looked, source: SourceInfo): Promise<void> {
    const guess = await guessOf(volume, source);
    this.#guess = guess ?? 0;
    if (guess !== undefined) return;
    const { repository, path } = volume;
    this.#ahead = new EstimateAhead({ repository, source, path, counters: this.#counters });
  }

  /** Done bytes: read, cached, or holes of files. */
  get doneBytes(): number {
    const { bytesRead, cachedBytes, bytesInHoles } = this.#counters;
    return bytesRead + cachedBytes + bytesInHoles;
  }

  /** Undefined until it is known. */
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

  /** Ends the counting thread. May be called again. */
  stop(): void {
    this.#ahead?.stop();
  }
}

/**
 * The size of a device. For a mounted volume, the used bytes of its file system; else the size of
 * the last snapshot. Undefined for a directory of a larger file system without a snapshot.
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
