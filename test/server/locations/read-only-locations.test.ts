import { describe, expect, it } from 'vitest';
import { ManualClock } from '../../../src/base/index.ts';
import type { KubeClient } from '../../../src/kube/index.ts';
import { ReadOnlyLocations } from '../../../src/server/locations/read-only-locations.ts';

const signal = new AbortController().signal;

describe('whether a location may be written to', () => {
  const locationOf = (accessMode: string) => ({
    apiVersion: 'velero.io/v1',
    kind: 'BackupStorageLocation',
    metadata: { name: 'default', namespace: 'velero' },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' }, accessMode },
  });

  it('is asked once for all backups that wait, and again when the answer is old', async () => {
    const clock = new ManualClock(0n);
    let accessMode = 'ReadWrite';
    let asked = 0;
    const client = {
      clock,
      find: () => {
        asked++;
        return Promise.resolve(locationOf(accessMode));
      },
    } as unknown as KubeClient;
    const locations = new ReadOnlyLocations(client, 'velero');
    const all = [1, 2, 3].map(() => locations.isReadOnly('default', signal));
    expect(await Promise.all(all)).toEqual([false, false, false]);
    expect(asked).toBe(1);
    accessMode = 'ReadOnly';
    expect(await locations.isReadOnly('default', signal)).toBe(false);
    clock.advance(10_000_000_000n);
    expect(await locations.isReadOnly('default', signal)).toBe(true);
    expect(asked).toBe(2);
  });

  it('is asked again at once where it could not be told, as of one that is missing', async () => {
    const found = [undefined, locationOf('ReadOnly')];
    const client = {
      clock: new ManualClock(0n),
      find: () => Promise.resolve(found.shift()),
    } as unknown as KubeClient;
    const locations = new ReadOnlyLocations(client, 'velero');
    await expect(locations.isReadOnly('default', signal)).rejects.toMatchObject({
      code: 'NO_LOCATION',
    });
    expect(await locations.isReadOnly('default', signal)).toBe(true);
  });
});
