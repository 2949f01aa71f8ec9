import * as fs from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { EndedMoverLog } from '../../src/agent/index.ts';
import { moverLogStore } from '../../src/cli/mover-log-store.ts';
import { tempDirectory } from '../support/kopia.ts';

const directory = tempDirectory('mover-log-store');
const bucket = join(directory, 'bucket');
const SIGNAL = new AbortController().signal;
const LOG: EndedMoverLog = {
  owner: { kind: 'Backup', name: 'b1', uid: 'u1' },
  ...{ volume: 'app.data', title: 'DataUpload up', node: 'node-1', pod: 'p-1' },
  ...{ time: '2026-11-25T21:00:00Z', text: Buffer.from('text') },
};

/** Of a cluster with this one location. */
const storeOf = (spec: object | undefined): ReturnType<typeof moverLogStore> =>
  moverLogStore({
    client: {
      find: () =>
        Promise.resolve(
          spec && {
            metadata: { name: 'default' },
            spec: { provider: 'velero.io/fs', config: { fspath: bucket }, ...spec },
          },
        ),
    } as never,
    ...{ namespace: 'velero', directory },
  });

describe('the bucket of a location, for logs', () => {
  it('has them below the prefix of the location, and keeps no file of its credentials', async () => {
    const config = { fspath: bucket, prefix: 'some/place' };
    fs.mkdirSync(join(bucket, 'some/place'), { recursive: true });
    const opened = await storeOf({ config }).open('default', SIGNAL);
    await opened?.add(LOG, { signal: SIGNAL });
    const path = join(bucket, 'some/place/backups/b1/longshore-logs/app.data.gz');
    expect(fs.existsSync(path)).toBe(true);
    await opened?.remove(LOG, { signal: SIGNAL });
    expect(fs.existsSync(path)).toBe(false);
    await opened?.[Symbol.asyncDispose]();
    expect(fs.readdirSync(directory)).toEqual(['bucket']);
  });

  it('is not opened where it is read-only', async () => {
    const store = storeOf({ accessMode: 'ReadOnly' });
    expect(await store.open('default', SIGNAL)).toBeUndefined();
  });

  it('that is not there is named', async () => {
    await expect(storeOf(undefined).open('gone', SIGNAL)).rejects.toThrow(
      'BackupStorageLocation.velero.io "gone" not found',
    );
  });
});
