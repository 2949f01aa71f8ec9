import { describe, expect, it } from 'vitest';
import { RESTORE_LOCATION, RestoreLocations } from '../../../src/server/restores/locations.ts';

const { signal } = new AbortController();

describe('the location of a restore', () => {
  const placesOf = (backup: { location: string | undefined }): RestoreLocations =>
    new RestoreLocations(
      {
        find: () =>
          Promise.resolve(
            backup.location === undefined
              ? undefined
              : { metadata: { name: 'b1' }, spec: { storageLocation: backup.location } },
          ),
      } as never,
      'velero',
    );
  const restore = (annotations?: Record<string, string>) => ({
    metadata: { name: 'r1', uid: 'u1', annotations },
    spec: { backupName: 'b1' },
  });

  it.each(['near', undefined])(
    'stays the one of its start when the Backup of its name is in another one, noted as %s',
    async (noted) => {
      const backup = { location: 'near' };
      const locations = placesOf(backup);
      const placed = restore(noted === undefined ? undefined : { [RESTORE_LOCATION]: noted });
      expect(await locations.of(placed, signal)).toBe('near');
      backup.location = 'far';
      expect(await locations.of(placed, signal)).toBe('near');
    },
  );

  it('is the noted one for a server that never saw its Backup', async () => {
    const locations = placesOf({ location: 'far' });
    expect(await locations.of(restore({ [RESTORE_LOCATION]: 'near' }), signal)).toBe('near');
  });

  it('is the one of its Backup if none is noted', async () => {
    expect(await placesOf({ location: 'far' }).of(restore(), signal)).toBe('far');
  });
});
