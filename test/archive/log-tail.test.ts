import { gunzipSync, gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { BackupArchive } from '../../src/archive/index.ts';
import { addedBytesOf, trailer, TRAILER_BYTES } from '../../src/archive/log-tail.ts';
import { MemoryBucket } from '../support/memory-bucket.ts';
import { tempDirectory } from '../support/kopia.ts';

const scratch = tempDirectory('scratch');
const KEY = 'backups/b1/b1-logs.gz';

describe('what is added to the log of a backup after its run', () => {
  it('follows the log, and replaces what was added before', async () => {
    const bucket = new MemoryBucket();
    bucket.objects.set(KEY, gzipSync('run\n'));
    const archive = new BackupArchive(bucket);
    const text = (): string => gunzipSync(bucket.objects.get(KEY) ?? '').toString();
    await archive.setLogTail('b1', 'one\n', { directory: scratch });
    expect(text()).toBe('run\none\n');
    await archive.setLogTail('b1', 'one\ntwo\n', { directory: scratch });
    expect(text()).toBe('run\none\ntwo\n');
    const once = bucket.objects.get(KEY);
    await archive.setLogTail('b1', 'one\ntwo\n', { directory: scratch });
    expect(bucket.objects.get(KEY)).toEqual(once);
  });

  it('is the whole log where none was stored', async () => {
    const bucket = new MemoryBucket();
    await new BackupArchive(bucket).setLogTail('b1', 'alone\n', { directory: scratch });
    expect(gunzipSync(bucket.objects.get(KEY) ?? '').toString()).toBe('alone\n');
  });

  it('is not seen in a log that only looks like it', () => {
    expect(addedBytesOf(gzipSync('run\n').subarray(-10), 10)).toBe(0);
    expect(addedBytesOf(gzipSync('a longer log of a run, by somebody else\n'), 60)).toBe(0);
    // The trailer claims more added bytes than the file has.
    expect(addedBytesOf(trailer(1000), 500)).toBe(0);
    expect(addedBytesOf(trailer(100), 500)).toBe(100 + TRAILER_BYTES);
  });
});
