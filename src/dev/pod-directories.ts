import * as fs from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type KubeClient, type Pod, PVCS, PVS, type Volume } from '../kube/index.ts';

export interface PodDirectoriesOptions {
  readonly client: KubeClient;
  /** What stands for `/var/lib/kubelet/pods`. */
  readonly directory: string;
  /** Where the volume with this handle lies. */
  readonly volumePath: (handle: string) => string;
}

/**
 * The directories that a kubelet keeps for its pods, with their volumes under the names of its
 * plugins. A volume of the simulated driver is a link to where it lies, since nothing is mounted
 * here.
 */
export class PodDirectories {
  readonly #options: PodDirectoriesOptions;

  constructor(options: PodDirectoriesOptions) {
    this.#options = options;
  }

  /** Makes those of a pod: false while a claim of it is not bound. */
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
    // One that is there stays: a data mover may be looking at it.
    if ((await fs.readlink(link).catch(() => undefined)) === target) return true;
    await fs.rm(link, { force: true });
    await fs.symlink(target, link);
    return true;
  }

  /** The volumes stay; directories of the pod's own go. */
  async unmount(pod: Pod): Promise<void> {
    await fs.rm(join(this.#options.directory, pod.metadata.uid), { recursive: true, force: true });
  }

  /**
   * Where a directory of the node really lies; undefined where it is not one of these, or is not
   * there.
   */
  async resolve(path: string): Promise<string | undefined> {
    if (!path.startsWith(`${this.#options.directory}/`) || path.includes('/..')) return undefined;
    try {
      const real = await fs.realpath(path);
      return (await fs.stat(real)).isDirectory() ? real : undefined;
    } catch {
      return undefined;
    }
  }

  /** Paths of its volumes by name, as far as they are mounted. */
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
