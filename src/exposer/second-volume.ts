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

/** The DataDownload of a second volume object: its name for people, and its UID as a label. */
export const OWNER_NAME = 'longshore.io/owner-name';
export const OWNER_LABEL = 'longshore.io/in-place-for';
/** Labels that restrict where the volume can be used. Only these are copied. */
const TOPOLOGY_LABEL = /^(?:topology\.|failure-domain\.beta\.)/;
/** Fields of a volume object that describe its claim, not the volume. */
const OF_CLAIM = [
  'claimRef',
  'persistentVolumeReclaimPolicy',
  'storageClassName',
  'volumeAttributesClassName',
] as const;
/** A provisioner deletes the volume of an object with this annotation. */
const PROVISIONED_BY = 'pv.kubernetes.io/provisioned-by';
/** The fields that identify the volume in the storage. */
export function sourceOf({ spec }: Pick<PersistentVolume, 'spec'>): object {
  const { csi, nfs, local, hostPath } = spec;
  return { csi, nfs, local, hostPath };
}

/** Named after the volume in the storage, so two restores cannot both create the object. */
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

/** Admission may change objects. Throws `TARGET_UNUSABLE` if a deletion could delete data. */
export function assertHarmless({ metadata, spec }: PersistentVolume): void {
  const isRetained = spec.persistentVolumeReclaimPolicy === 'Retain';
  if (isRetained && metadata.annotations?.[PROVISIONED_BY] === undefined) return;
  const text = `the cluster has changed PersistentVolume ${metadata.name} so that deleting it would delete the data; nothing was restored`;
  throw unusable(text);
}
