import { gzipSync } from 'node:zlib';
import { ScratchFile, type StoredArchive } from '../../../archive/index.ts';
import { isCode } from '../../../base/index.ts';
import type { About, Backup } from '../../../backup/index.ts';
import { BackupRunLog } from './run-log.ts';

/** What is said of a backup after its run. */
export interface LateLine {
  readonly level: 'info' | 'warn' | 'error';
  readonly message: string;
  readonly about?: About | undefined;
}

/** The log of a backup with lines that came after its run, in a new file, which the caller closes. */
export async function subjectLog(
  stored: StoredArchive,
  {
    backup,
    lines,
    directory,
    format,
    signal,
  }: {
    readonly backup: Backup;
    readonly lines: readonly LateLine[];
    readonly directory: string;
    readonly format: string;
    readonly signal: AbortSignal;
  },
): Promise<ScratchFile> {
  const file = await ScratchFile.create(directory);
  try {
    // A backup whose log could not be stored begins one here.
    try {
      for await (const piece of stored.read('log', { signal })) await file.append(piece);
    } catch (error) {
      if (!isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE')) throw error;
    }
    let text = '';
    const sink = { addLine: (line: string) => void (text += line), addEntry: () => undefined };
    const { namespace = '', name } = backup.metadata;
    const log = new BackupRunLog({
      ...{ sink, format, level: 'info', entries: [] },
      backup: `${namespace}/${name}`,
    });
    for (const { level, message, about } of lines) log.results[level](message, about);
    // Another member of the file.
    await file.append(gzipSync(text));
    file.finish();
    return file;
  } catch (error) {
    await file.close();
    throw error;
  }
}
