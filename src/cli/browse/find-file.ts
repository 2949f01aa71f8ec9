import { CodedError } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import type { FilePlace } from '../../server/index.ts';
import { resolveEntry } from '../../snapshot/index.ts';
import { type OpenDevices, rawVolumeOf } from './device-volume.ts';
import { KopiaFile } from './kopia-file.ts';
import type { VolumeFile } from './volume-file.ts';

/**
 * Finds a file or directory of a volume by its path from the root. Throws `PATH_NOT_FOUND` and
 * `SNAPSHOT_NOT_FOUND`. For raw volumes throws `SNAPSHOT_INCOMPLETE`, `DEVICE_NOT_READ`,
 * `DEVICE_DAMAGED` and `OBJECT_TOO_LONG`. Also throws errors of the repository.
 */
export async function findFile(
  { repository, devices }: { readonly repository: Repository; readonly devices: OpenDevices },
  snapshotId: string,
  { volume, path, objectId, signal }: FilePlace & { readonly signal: AbortSignal },
): Promise<VolumeFile> {
  const root = await resolveEntry(repository, snapshotId, undefined, { signal });
  const raw = await rawVolumeOf(repository, root, signal);
  // Users know the volume by its name, not by the path of the device.
  const name = volume.slice(volume.indexOf('/') + 1);
  let file: VolumeFile = raw
    ? await devices.rootOf(repository, { ...raw, name }, signal)
    : new KopiaFile(repository, root);
  for (const [depth, each] of path.entries()) {
    const id = depth === path.length - 1 ? objectId : undefined;
    const below = await file.find({ name: each, id }, signal);
    if (!below) {
      const text = `there is no /${path.slice(0, depth + 1).join('/')} in volume ${volume}`;
      throw new CodedError('PATH_NOT_FOUND', text);
    }
    file = below;
  }
  return file;
}
