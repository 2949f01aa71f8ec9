import { type Pod, PODS } from '../../kube/index.ts';
import { fileAnnotationsOf, type PodView } from '../../volume-policy/index.ts';
import { patiently, type Setting } from './settings.ts';

/** A pod's volume that is a PVC. */
export interface ClaimUser extends PodView {
  readonly pod: string;
  readonly isRunning: boolean;
}

/**
 * Finds the pods that mount a PVC. The pods of a namespace are read once, because a process serves
 * one backup. Only these facts are kept: a namespace may have ten thousand pods of 30 KiB each.
 */
export class ClaimUsers {
  readonly #setting: Setting;
  readonly #byNamespace = new Map<string, Promise<Map<string, ClaimUser[]>>>();

  constructor(setting: Setting) {
    this.#setting = setting;
  }

  async of(namespace: string, claim: string): Promise<readonly ClaimUser[]> {
    let read = this.#byNamespace.get(namespace);
    if (!read) {
      read = this.#read(namespace);
      this.#byNamespace.set(namespace, read);
      read.catch(() => this.#byNamespace.delete(namespace));
    }
    return (await read).get(claim) ?? [];
  }

  async #read(namespace: string): Promise<Map<string, ClaimUser[]>> {
    const { client } = this.#setting;
    const users = await patiently(() => client.collect(PODS, { namespace }, usersOf));
    const byClaim = new Map<string, ClaimUser[]>();
    for (const [claim, user] of users) {
      const before = byClaim.get(claim);
      if (before) before.push(user);
      else byClaim.set(claim, [user]);
    }
    return byClaim;
  }
}

/** As in Velero: the pod is on a node and is not being deleted. */
const runs = ({ metadata, spec, status }: Pod): boolean =>
  (spec.nodeName ?? '') !== '' &&
  status?.phase === 'Running' &&
  metadata.deletionTimestamp === undefined;

function usersOf(pod: Pod): (readonly [string, ClaimUser])[] {
  const { metadata, spec } = pod;
  const isRunning = runs(pod);
  const annotations = fileAnnotationsOf(metadata.annotations);
  return (spec.volumes ?? []).flatMap(({ name: volumeName, persistentVolumeClaim }) => {
    const claim = persistentVolumeClaim?.claimName;
    return claim === undefined
      ? []
      : [[claim, { pod: metadata.name, isRunning, annotations, volumeName }] as const];
  });
}
