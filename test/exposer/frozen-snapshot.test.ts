import { describe, expect, it } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import type { ExposerOptions } from '../../src/exposer/index.ts';
import { SnapshotHandover } from '../../src/exposer/snapshot-handover.ts';
import type { KubeObject, ObjectRef, Resource } from '../../src/kube/index.ts';
import { anUpload } from '../support/builders.ts';

const MADE = '2026-01-01T00:10:00Z';
const NS = 1_000_000;
const nsOf = (time: string): number => Date.parse(time) * NS;
const upload = anUpload({
  metadata: { name: 'up', namespace: 'velero', uid: 'u-1' },
  spec: { sourceNamespace: 'app', csiSnapshot: { volumeSnapshot: 'snap', storageClass: 'c' } },
});

/** As much of an API server as the hand-over asks for. */
class Objects {
  readonly #objects = new Map<string, KubeObject>();
  readonly #key = ({ kind }: Resource<KubeObject>, { namespace, name }: ObjectRef): string =>
    [kind, namespace ?? '', name].join(' ');

  put(kind: string, object: object): void {
    const known = object as KubeObject;
    this.#objects.set(this.#key({ kind } as never, known.metadata), known);
  }
  find = (resource: Resource<KubeObject>, ref: ObjectRef): Promise<KubeObject | undefined> =>
    Promise.resolve(this.#objects.get(this.#key(resource, ref)));
  get = this.find;
  listPage = async (
    resource: Resource<KubeObject>,
    { namespace, fieldSelector }: { namespace?: string; fieldSelector: string },
  ): Promise<object> => {
    const name = fieldSelector.replace('metadata.name=', '');
    const found = await this.find(resource, { namespace, name });
    return { items: found ? [found] : [], resourceVersion: '1' };
  };
  create = (resource: Resource<KubeObject>, object: KubeObject): Promise<KubeObject> => {
    const made = { ...object, metadata: { ...object.metadata, uid: `made-${resource.kind}` } };
    this.put(resource.kind, made);
    return Promise.resolve(made);
  };
  patch = (resource: Resource<KubeObject>, ref: ObjectRef): Promise<KubeObject | undefined> =>
    this.find(resource, ref);
  delete = (resource: Resource<KubeObject>, ref: ObjectRef): Promise<void> => {
    this.#objects.delete(this.#key(resource, ref));
    return Promise.resolve();
  };
}

interface GroupStatus {
  readonly snapshot?: object;
  readonly content?: object;
}

async function frozenAt(
  source: object,
  group: GroupStatus,
  told?: number,
): Promise<string | undefined> {
  const objects = new Objects();
  objects.put('VolumeSnapshot', {
    metadata: { name: 'snap', namespace: 'app', uid: 's-1', creationTimestamp: MADE },
    spec: { source },
    status: { readyToUse: true, boundVolumeSnapshotContentName: 'content', ...group.snapshot },
  });
  objects.put('VolumeSnapshotContent', {
    metadata: { name: 'content', uid: 'c-1' },
    spec: {
      driver: 'd',
      deletionPolicy: 'Delete',
      source: {},
      volumeSnapshotRef: { namespace: 'app', name: 'snap', uid: 's-1' },
    },
    status: { snapshotHandle: 'h', creationTime: told, ...group.content },
  });
  const options = { client: objects, namespace: 'velero', logger: silentLogger };
  const handover = new SnapshotHandover({
    ...options,
    prepareTimeoutMs: 1000,
  } as unknown as ExposerOptions);
  const context = { operationTimeoutMs: 1000, signal: new AbortController().signal };
  const first = await handover.takeOver(upload, context);
  // The next agent continues from here: the created content has all that it needs.
  expect(await handover.takeOver(upload, context)).toEqual(first);
  return first.frozenAt;
}

describe('when the volume of a snapshot stood still', () => {
  const OF_CLAIM = { persistentVolumeClaimName: 'data' };
  const OF_CONTENT = { volumeSnapshotContentName: 'content' };
  const GROUP: GroupStatus = { snapshot: { volumeGroupSnapshotName: 'group' } };
  const CONTENTS: GroupStatus = { content: { volumeGroupSnapshotHandle: 'h' } };
  const earlier = '2026-01-01T00:05:00.000Z';
  it.each([
    ['is after its object was made', OF_CLAIM, {}, nsOf('2026-01-01T00:10:02Z'), MADE],
    ['is not known from a driver that says nothing', OF_CLAIM, {}, undefined, MADE],
    ['is not in 1970', OF_CLAIM, {}, 0, MADE],
    ['is not hours before, by a clock that is behind', OF_CLAIM, {}, nsOf(earlier), MADE],
    ['is before, for one of a group', OF_CLAIM, GROUP, nsOf(earlier), earlier],
    ['is before, for one whose content is of a group', OF_CLAIM, CONTENTS, nsOf(earlier), earlier],
    ['is not known for one of a group', OF_CLAIM, GROUP, undefined, undefined],
    ['is not when its sidecar asked', OF_CLAIM, GROUP, nsOf('2026-01-01T00:10:02Z'), undefined],
    ['is not days before', OF_CLAIM, GROUP, nsOf('2025-12-20T00:00:00Z'), undefined],
    ['is before, for one that was there', OF_CONTENT, {}, nsOf(earlier), earlier],
    ['is not known for one that was there', OF_CONTENT, {}, 0, undefined],
  ])('%s', async (_what, source, status, told, expected) => {
    expect(await frozenAt(source, status, told)).toBe(expected);
  });
});
