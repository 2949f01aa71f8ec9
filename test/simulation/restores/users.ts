import { type KubeObject, PODS, PVCS, type Resource } from '../../../src/kube/index.ts';
import { copyJson } from '../../../src/dev/api-server/store.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';
import type { World } from '../world.ts';
import { RESTORE } from './cluster.ts';
import { RESTORED } from './end.ts';

const MINUTE_MS = 60_000;
const BY_USER = 'by a user';

export interface UsersOptions {
  readonly world: World;
  readonly time: VirtualTime;
  readonly random: Random;
  readonly spaces: readonly string[];
  readonly problem: (text: string) => void;
  readonly note: (what: string) => void;
}

/** Users who work with restored objects at once: they change objects, delete some, and end pods. */
export class Users {
  /** By `Kind namespace/name`. */
  readonly touched = new Map<string, 'changed' | 'deleted' | 'ended'>();
  readonly #options: UsersOptions;

  /** `chance`: the probability that an object is touched. */
  constructor(options: UsersOptions, chance: number) {
    const { world, random, spaces } = options;
    this.#options = options;
    for (const resource of RESTORED) {
      world.store.watch(resource, {}, world.store.version, (type, object) => {
        const { namespace = '', labels } = object.metadata;
        if (!spaces.includes(namespace)) return;
        if (type === 'MODIFIED') this.#assertKept(resource, object);
        const isRestored = labels?.['velero.io/restore-name'] === RESTORE;
        if (type !== 'ADDED' || !isRestored || !random.chance(chance)) return;
        const atMs = random.chance(0.5) ? 5000 : 15 * MINUTE_MS;
        options.time.after(random.between(0, atMs), () => {
          this.#touch(resource, object);
        });
      });
    }
  }

  #touch(resource: Resource<KubeObject>, { metadata }: KubeObject): void {
    const { world, random, note } = this.#options;
    const { namespace = '', name, uid } = metadata;
    const id = idOf(resource, metadata);
    if (world.find(resource, name, namespace)?.metadata.uid !== uid) return;
    if (resource.plural === PODS.plural && random.chance(0.4)) {
      note('pods that end');
      this.touched.set(id, 'ended');
      world.patch(PODS, namespace, name, { status: { phase: 'Succeeded' } });
      return;
    }
    const isDeletion = random.chance(0.3) || [PODS.plural, PVCS.plural].includes(resource.plural);
    if (isDeletion) {
      note('objects that users delete');
      this.touched.set(id, 'deleted');
      world.delete(resource, namespace, name);
      return;
    }
    note('objects that users change');
    const found = copyJson(world.store.get(resource, namespace, name));
    found.metadata.labels = { ...found.metadata.labels, owner: 'user' };
    (found as { data?: object }).data = { text: BY_USER };
    world.store.update(resource, found);
    this.touched.set(id, 'changed');
  }

  #assertKept(resource: Resource<KubeObject>, { metadata, ...rest }: KubeObject): void {
    const id = idOf(resource, metadata);
    if (this.touched.get(id) !== 'changed') return;
    const { data } = rest as { data?: { text?: string } };
    if (data?.text === BY_USER && metadata.labels?.owner === 'user') return;
    this.#options.problem(`${id} is overwritten after a user has changed it`);
  }
}

export const idOf = ({ kind }: Resource<KubeObject>, { namespace, name }: KubeObject['metadata']) =>
  `${kind} ${namespace ?? ''}/${name}`;
