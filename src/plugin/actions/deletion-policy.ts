import { isCode } from '../../base/index.ts';
import {
  type KubeClient,
  type KubeObject,
  type Resource,
  VOLUME_SNAPSHOT_CONTENTS,
  type VolumeSnapshotContent,
} from '../../kube/index.ts';
import { patiently } from './setting.ts';
import { RETAINED_UNTIL } from './velero-names.ts';

/** Attempts to change a content that others change at the same time. Our choice. */
const CHANGES_MAX = 5;

/**
 * Changes a content in the version that was looked at, and looks again when its controllers have
 * changed it meanwhile. `change` returns a merge patch, or undefined where nothing is to be
 * changed. Returns the content as it is then; undefined for one that is gone. Throws what `change`
 * throws, and `KUBE_CONFLICT` when others change the content all the time.
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
 * What makes the deletion of a content remove what the storage has, with a note that it was kept
 * until then: a process that is killed before it has deleted the snapshot leaves the note, by which
 * {@link keepAgain} finds the content.
 */
export const releasedNow = ({ clock }: KubeClient) => ({
  metadata: { labels: { [RETAINED_UNTIL]: String(secondsOf(clock.nowNs())) } },
  spec: { deletionPolicy: 'Delete' },
});

/** What keeps what the storage has. */
export const RETAINED = {
  metadata: { labels: { [RETAINED_UNTIL]: null } },
  spec: { deletionPolicy: 'Retain' },
};

/**
 * The content of the snapshot with this UID gets back the policy that a note says it had. Others
 * stay as they are.
 */
export async function keepAgain(
  client: KubeClient,
  name: string,
  snapshotUid: string,
  signal: AbortSignal,
): Promise<void> {
  const change = (content: VolumeSnapshotContent) => {
    // What the status of a snapshot says could have been written by others.
    if (content.spec.volumeSnapshotRef.uid !== snapshotUid) return undefined;
    if (content.metadata.deletionTimestamp !== undefined) return undefined;
    return content.metadata.labels?.[RETAINED_UNTIL] === undefined ? undefined : RETAINED;
  };
  await changeContent(client, VOLUME_SNAPSHOT_CONTENTS, name, change, signal);
}

/**
 * Longer than the process that wrote a note goes on with the deletion, also where clocks differ by
 * minutes. Our choice.
 */
const UNDER_WAY_SECONDS = 300;

/**
 * The process that wrote the note has ended, or has given up. A note from the future is of a clock
 * that was wrong.
 */
export function isAbandoned({ metadata }: KubeObject, { clock }: KubeClient): boolean {
  const until = Number(metadata.labels?.[RETAINED_UNTIL]);
  return !(Math.abs(secondsOf(clock.nowNs()) - until) <= UNDER_WAY_SECONDS);
}

const secondsOf = (ns: bigint): number => Number(ns / 1_000_000_000n);
