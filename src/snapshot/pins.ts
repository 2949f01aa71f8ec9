import { CodedError } from '../base/index.ts';
import type { Manifest, Repository } from '../repository/index.ts';
import { parseSnapshot } from './snapshot-manifest.ts';

/**
 * Adds or removes pins, which exempt a snapshot from retention. Durable after a flush. Keeps the
 * ID, because users may have noted it, and unknown fields. Returns false if nothing changes. Throws
 * `DAMAGED_SNAPSHOT`.
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
