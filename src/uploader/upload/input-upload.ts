import { CodedError } from '../../base/index.ts';
import type { DirectoryEntry } from '../../snapshot/index.ts';
import { uploadLoneFile } from './device-upload.ts';
import type { StreamSource, VolumeUpload } from './volume-upload.ts';

/**
 * Stores the bytes of a pipe as the only file of a directory. Errors of the pipe pass through.
 * Throws `STREAM_LOST` if stored contents are gone, since a pipe cannot be read again.
 */
export async function uploadInput(
  parts: VolumeUpload,
  { name, read }: StreamSource,
  isSecond: boolean,
): Promise<DirectoryEntry> {
  const { repository, files, counters, signal } = parts;
  if (isSecond) {
    const text = 'contents of the stream were removed from the repository meanwhile; run it again';
    throw new CodedError('STREAM_LOST', text);
  }
  const owner = { uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 };
  const common = { mtimeNs: repository.clock.nowNs(), ...owner };
  Object.assign(counters, { filesFound: 1 });
  const root = await uploadLoneFile(
    parts,
    { ...common, name, mode: 0o700 },
    { ...common, name, mode: 0o600 },
    async (file) => {
      const stored = await files.uploadInput(read(signal), name, file);
      Object.assign(counters, { bytesFound: stored.size, isListed: true });
      return stored;
    },
  );
  // A partial stream is useless for the next run.
  signal.throwIfAborted();
  return root;
}
