import { CodedError } from '../base/index.ts';
import type { Manifest, Repository } from '../repository/index.ts';
import { parseSnapshot } from './snapshot-manifest.ts';

/**
 * Adds or removes names that keep a snapshot from being removed by policy; durable after a flush.
 * It keeps its ID, which others may have written down, and all that this program does not know of
 * it. False when nothing was to be changed. Throws `DAMAGED_SNAPSHOT`.
 */
export function changePins(
  { manifests }: Repository,
  manifest: Manifest,
  { add = [], remove = [] }: { add?: readonly string[]; remove?: readonly string[] },
): boolean {
  const { pins: before = [] } = parseSnapshot(manifest);
  const pins = new Set([...before, ...add]).difference(new Set(remove));
  if (pins.size === before.length && before.every((pin) => pins.has(pin))) return false;
  const { data, id, labels } = manifest;
  if (typeof data !== 'object')
    throw new CodedError('DAMAGED_SNAPSHOT', `snapshot ${id} is damaged`);
  manifests.replace(id, labels, { ...data, pins: pins.size > 0 ? [...pins].sort() : undefined });
  return true;
}
