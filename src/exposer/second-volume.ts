import { createHash } from 'node:crypto';
import {
  type DataDownload,
  type NewObject,
  type PersistentVolume,
  SECOND_VOLUME_PREFIX,
} from '../kube/index.ts';
import type { ClaimRef } from './claim-users.ts';
import { unusable } from './in-place-target.ts';
import { OWNER_UID } from './ownership.ts';

/**
 * Which DataDownload a second volume object is for: its name, for whoever finds the object, and as
 * a label its UID.
 */
export const OWNER_NAME = 'longshore.io/owner-name';
export const OWNER_LABEL = 'longshore.io/in-place-for';
/** Of what else a volume object says, these tell where it can be used. */
const TOPOLOGY_LABEL = /^(?:topology\.|failure-domain\.beta\.)/;
/** Fields of a volume object that are about its claim, and not about the volume. */
const OF_CLAIM = [
  'claimRef',
  'persistentVolumeReclaimPolicy',
  'storageClassName',
  'volumeAttributesClassName',
] as const;
/** A provisioner deletes the volume of an object that has this one. */
const PROVISIONED_BY = 'pv.kubernetes.io/provisioned-by';
/** What a volume object says of the volume itself. */
export function sourceOf({ spec }: Pick<PersistentVolume, 'spec'>): object {
  const { csi, nfs, local, hostPath } = spec;
  return { csi, nfs, local, hostPath };
}

/**
 * One name for one volume in the storage: two restores in place of it cannot both have the object.
 */
export function volumeNameFor(volume: PersistentVolume): string {
  const { csi } = volume.spec;
  const identity = csi ? [csi.driver, csi.volumeHandle] : sourceOf(volume);
  const hash = createHash('sha256').update(JSON.stringify(identity)).digest('hex');
  return SECOND_VOLUME_PREFIX + hash.slice(0, 32);
}

export function secondVolume(
  download: DataDownload,
  volume: PersistentVolume,
  claim: ClaimRef,
): NewObject<PersistentVolume> {
  const spec = Object.fromEntries(
    Object.entries(volume.spec).filter(([key]) => !OF_CLAIM.some((name) => name === key)),
  );
  const labels = Object.fromEntries(
    Object.entries(volume.metadata.labels ?? {}).filter(([key]) => TOPOLOGY_LABEL.test(key)),
  );
  const { name, uid } = download.metadata;
  return {
    metadata: {
      name: volumeNameFor(volume),
      labels: { ...labels, [OWNER_LABEL]: uid },
      annotations: { [OWNER_UID]: uid, [OWNER_NAME]: name },
    },
    spec: {
      ...spec,
      persistentVolumeReclaimPolicy: 'Retain',
      storageClassName: '',
      claimRef: { apiVersion: 'v1', kind: 'PersistentVolumeClaim', ...claim },
    },
  };
}

/**
 * What a cluster makes of new objects may be something else. Throws `TARGET_UNUSABLE`: no claim may
 * have such a one.
 */
export function assertHarmless({ metadata, spec }: PersistentVolume): void {
  const isRetained = spec.persistentVolumeReclaimPolicy === 'Retain';
  if (isRetained && metadata.annotations?.[PROVISIONED_BY] === undefined) return;
  const text = `the cluster has changed PersistentVolume ${metadata.name} so that deleting it would delete the data; nothing was restored`;
  throw unusable(text);
}
