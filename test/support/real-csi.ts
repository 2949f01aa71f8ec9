import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readdirSync } from 'node:fs';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import {
  PVCS,
  PVS,
  VOLUME_SNAPSHOT_CLASSES,
  type PersistentVolumeClaim,
} from '../../src/kube/index.ts';
import { hasPeers, peer, type RealApi } from './real-api.ts';

const DRIVER = 'dir.csi.test';
export const SNAPSHOT_CLASS = 'dir-snap';
const NEEDED = ['csidir', 'csi-snapshotter', 'snapshot-controller'] as const;
export type Part = (typeof NEEDED)[number];

/** True if the binaries are installed. With REQUIRE_PEERS=1, it is an error if not. */
export const hasRealCsi = (): boolean => hasPeers(...NEEDED);

/**
 * The real snapshot controller and csi-snapshotter on an API server, with our small driver csidir,
 * and without a node.
 */
export class RealCsi implements AsyncDisposable {
  readonly #api: RealApi;
  readonly #data: string;
  readonly #socket: string;
  readonly #parts = new Map<Part, ChildProcess>();

  private constructor(api: RealApi) {
    this.#api = api;
    this.#data = join(api.directory, 'csidir');
    this.#socket = join(api.directory, 'csi.sock');
  }

  static async start(api: RealApi): Promise<RealCsi> {
    const csi = new RealCsi(api);
    try {
      await csi.#start();
      return csi;
    } catch (error) {
      await csi[Symbol.asyncDispose]();
      throw error;
    }
  }

  async #start(): Promise<void> {
    this.begin('csidir');
    while (!existsSync(this.#socket)) await new Promise((resume) => setTimeout(resume, 20));
    this.begin('csi-snapshotter');
    this.begin('snapshot-controller');
    await this.#api.client.create(VOLUME_SNAPSHOT_CLASSES, {
      metadata: { name: SNAPSHOT_CLASS },
      driver: DRIVER,
      deletionPolicy: 'Delete',
    });
  }

  /** Starts a part, unless it runs. */
  begin(part: Part): void {
    if (this.#parts.has(part)) return;
    const kubeconfig = `--kubeconfig=${this.#api.kubeconfig}`;
    const parameters: Readonly<Record<Part, string[]>> = {
      csidir: ['--data', this.#data, '--endpoint', this.#socket],
      'csi-snapshotter': [kubeconfig, `--csi-address=${this.#socket}`],
      'snapshot-controller': [kubeconfig],
    };
    const log = openSync(join(this.#api.directory, `${part}.log`), 'a');
    const stdio = ['ignore', log, log] as const;
    this.#parts.set(part, spawn(peer(part), parameters[part], { stdio: [...stdio] }));
    closeSync(log);
  }

  /** Kills a part. After a restart, it sees the current objects, and no earlier changes. */
  async end(part: Part): Promise<void> {
    const child = this.#parts.get(part);
    this.#parts.delete(part);
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await ended;
  }

  /** A bound PVC of the driver, with a file in its volume. */
  async makeVolume(namespace: string, name: string): Promise<PersistentVolumeClaim> {
    const { client } = this.#api;
    const volumeName = `${namespace}-${name}`;
    await fs.mkdir(join(this.#data, 'volumes', volumeName), { recursive: true });
    await fs.writeFile(join(this.#data, 'volumes', volumeName, 'file'), volumeName);
    const size = { storage: '1Gi' };
    await client.create(PVS, {
      metadata: { name: volumeName },
      spec: {
        capacity: size,
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'dir',
        persistentVolumeReclaimPolicy: 'Retain',
        csi: { driver: DRIVER, volumeHandle: volumeName },
      },
    });
    return client.create(PVCS, {
      metadata: { namespace, name },
      spec: {
        accessModes: ['ReadWriteOnce'],
        storageClassName: 'dir',
        volumeName,
        resources: { requests: size },
      },
    });
  }

  /** Handles of the snapshots in the storage. */
  snapshots(): string[] {
    return readdirSync(join(this.#data, 'snapshots'));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const part of NEEDED) await this.end(part);
  }
}
