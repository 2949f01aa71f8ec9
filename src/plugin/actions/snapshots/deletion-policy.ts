import { isCode } from '../../../base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  type VolumeSnapshotContent,
} from '../../../kube/index.ts';
import { patiently } from '../settings.ts';
import { RETAINED_UNTIL } from '../velero-names.ts';

/** Attempts to change a content while others change it. Our choice. */
const CHANGES_MAX = 5;

/**
 * Changes a content in the version that was read, and reads it again if a controller changed it
 * meanwhile. `change` returns a merge patch, or undefined for no change. Returns the resulting
 * content, or undefined if it does not exist. Throws the errors of `change`, and `KUBE_CONFLICT` if
 * others keep changing the content.
 */
export async function changeContent<T extends KubeObject>(
  client: KubeClient,
  resource: Resource<T>,
  name: string,
  change: (content: T) => { readonly metadata?: object; readonly spec?: object } | undefined,
  signal: AbortSignal,
): Promise<T | undefined> {
  for (let attempt = 1; ; attempt++) {
    const content = await patiently(() => client.find(resource, { name }, { signal }), signal);
    const wanted = content && change(content);
    if (!wanted) return content;
    const { resourceVersion } = content.metadata;
    const patch = { ...wanted, metadata: { ...wanted.metadata, resourceVersion } };
    try {
      return await patiently(() => client.patch(resource, { name }, patch, { signal }), signal);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return undefined;
      if (!isCode(error, 'KUBE_CONFLICT') || attempt === CHANGES_MAX) throw error;
    }
  }
}

/**
 * Patch: deleting the content also deletes the snapshot from the storage. A label notes that the
 * content was retained until now. If the process is killed before it deletes the snapshot, {@link
 * keepAgain} finds the content by this note.
 */
export const releasedNow = ({ clock }: KubeClient) => ({
  metadata: { labels: { [RETAINED_UNTIL]: String(secondsOf(clock.nowNs())) } },
  spec: { deletionPolicy: 'Delete' },
});

/** Patch: deleting the content keeps the snapshot in the storage. */
export const RETAINED = {
  metadata: { labels: { [RETAINED_UNTIL]: null } },
  spec: { deletionPolicy: 'Retain' },
};

/** Restores `Retain` on the content of the snapshot with this UID, if the content has the note. */
export async function keepAgain(
  client: KubeClient,
  name: string,
  snapshotUid: string,
  signal: AbortSignal,
): Promise<void> {
  const change = (content: VolumeSnapshotContent) => {
    // Users can write the status of a snapshot.
    if (content.spec.volumeSnapshotRef.uid !== snapshotUid) return undefined;
    if (content.metadata.deletionTimestamp !== undefined) return undefined;
    return content.metadata.labels?.[RETAINED_UNTIL] === undefined ? undefined : RETAINED;
  };
  await changeContent(client, VOLUME_SNAPSHOT_CONTENTS, name, change, signal);
}

/** Longer than a deletion after a note takes, even with clocks minutes apart. Our choice. */
const UNDER_WAY_SECONDS = 300;

/** Whether the note's writer has ended or given up. A future note comes from a wrong clock. */
export function isAbandoned({ metadata }: KubeObject, { clock }: KubeClient): boolean {
  const until = Number(metadata.labels?.[RETAINED_UNTIL]);
  return !(Math.abs(secondsOf(clock.nowNs()) - until) <= UNDER_WAY_SECONDS);
}

const secondsOf = (ns: bigint): number => Number(ns / 1_000_000_000n);
