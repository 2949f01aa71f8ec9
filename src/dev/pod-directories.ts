import * as fs from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type KubeClient, type Pod, PVCS, PVS, type Volume } from '../kube/index.ts';

export interface PodDirectoriesOptions {
  readonly client: KubeClient;
  /** Replaces `/var/lib/kubelet/pods`. */
  readonly directory: string;
  /** The path of the volume with this handle. */
  readonly volumePath: (handle: string) => string;
}

/**
 * The directories that a kubelet keeps for its pods, with volumes under the names of their plugins.
 * A volume of the simulated driver is a link, because nothing is mounted here.
 */
export class PodDirectories {
  readonly #options: PodDirectoriesOptions;

  constructor(options: PodDirectoriesOptions) {
    this.#options = options;
  }

  /** Creates the directories of a pod. Returns false if one of its claims is not bound. */
  async mount(pod: Pod): Promise<boolean> {
    for (const volume of pod.spec.volumes ?? []) {
      if (!(await this.#mountOne(pod, volume))) return false;
    }
    return true;
  }

  async #mountOne(pod: Pod, volume: Volume): Promise<boolean> {
    const { client, volumePath } = this.#options;
    const { namespace, name: podName } = pod.metadata;
    const below = this.#of(pod);
    if (volume.emptyDir !== undefined) {
      await fs.mkdir(join(below, 'kubernetes.io~empty-dir', volume.name), { recursive: true });
      return true;
    }
    const claimName = volume.ephemeral
      ? `${podName}-${volume.name}`
      : volume.persistentVolumeClaim?.claimName;
    if (claimName === undefined) return true;
    const claim = await client.find(PVCS, { namespace, name: claimName });
    const name = claim?.spec.volumeName;
    if (claim?.status?.phase !== 'Bound' || name === undefined) return false;
    const handle = (await client.find(PVS, { name }))?.spec.csi?.volumeHandle;
    if (handle === undefined) return false;
    const link = join(below, 'kubernetes.io~csi', name, 'mount');
    await fs.mkdir(dirname(link), { recursive: true });
    const target = volumePath(handle);
    // An existing link stays, because a data mover may be using it.
    if ((await fs.readlink(link).catch(() => undefined)) === target) return true;
    await fs.rm(link, { force: true });
    await fs.symlink(target, link);
    return true;
  }

  /** Removes the pod's own directories. The volumes stay. */
  async unmount(pod: Pod): Promise<void> {
    await fs.rm(join(this.#options.directory, pod.metadata.uid), { recursive: true, force: true });
  }

  /** The real path of a directory of the node; undefined if it is missing or outside. */
  async resolve(path: string): Promise<string | undefined> {
    if (!path.startsWith(`${this.#options.directory}/`) || path.includes('/..')) return undefined;
    try {
      const real = await fs.realpath(path);
      return (await fs.stat(real)).isDirectory() ? real : undefined;
    } catch {
      return undefined;
    }
  }

  /** Paths of the pod's mounted volumes, by name. */
  async volumes(pod: Pod): Promise<Map<string, string>> {
    const found = new Map<string, string>();
    const plugins = await fs.readdir(this.#of(pod)).catch(() => []);
    for (const plugin of plugins) {
      for (const name of await fs.readdir(join(this.#of(pod), plugin))) {
        const path = join(this.#of(pod), plugin, name);
        found.set(name, plugin === 'kubernetes.io~csi' ? join(path, 'mount') : path);
      }
    }
    return found;
  }

  #of(pod: Pod): string {
    return join(this.#options.directory, pod.metadata.uid, 'volumes');
  }
}
