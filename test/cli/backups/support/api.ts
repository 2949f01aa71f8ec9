import * as fs from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { writeTar } from '../../../../src/archive/tar/write-tar.ts';
import type { Session } from '../../../../src/cli/backups/session.ts';
import { ApiServer } from '../../../../src/dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  connectToCluster,
  type KubeClient,
  type KubeObject,
  NAMESPACES,
  type Resource,
} from '../../../../src/kube/index.ts';
import { entriesOf, type StoredItem } from '../../../restore/support/backup.ts';
import { type Ran, runHere } from '../../../support/command-line.ts';
import { tempDirectory } from '../../../support/kopia.ts';

const NAMESPACE = 'velero';

/**
 * An API server with the namespace of Velero and a location in a directory, and the command line
 * that is told where it is.
 */
export class Api implements AsyncDisposable {
  readonly server: ApiServer;
  readonly client: KubeClient;
  readonly kubeconfig: string;
  /** The bucket of the location. */
  readonly bucket: string;

  private constructor(server: ApiServer, directory: string) {
    this.server = server;
    this.kubeconfig = join(directory, 'kubeconfig');
    this.bucket = join(directory, 'bucket');
    fs.mkdirSync(this.bucket);
    fs.writeFileSync(this.kubeconfig, server.kubeconfig);
    this.client = connectToCluster({ kubeconfig: this.kubeconfig, userAgent: 'test/1' });
  }

  static async start(name: string): Promise<Api> {
    const api = new Api(await ApiServer.start(), tempDirectory(name));
    await api.client.create(NAMESPACES, { metadata: { name: NAMESPACE } });
    await api.add(BACKUP_STORAGE_LOCATIONS, 'default', {
      spec: {
        provider: 'velero.io/fs',
        config: { fspath: api.bucket },
        objectStorage: { bucket: 'default' },
      },
    });
    return api;
  }

  /** Creates an object in Velero's namespace. */
  add<T extends KubeObject>(
    resource: Resource<T>,
    name: string,
    { labels, ...rest }: { labels?: object; spec?: object; status?: object },
  ): Promise<T> {
    const metadata = { namespace: NAMESPACE, name, ...(labels && { labels }) };
    return this.client.create(resource, { metadata, spec: {}, ...rest } as never);
  }

  set(resource: Resource<KubeObject>, name: string, status: object): Promise<KubeObject> {
    return this.client.patch(resource, { namespace: NAMESPACE, name }, { status });
  }

  longshore(...words: string[]): Promise<Ran> {
    return runHere(...words, '--kubeconfig', this.kubeconfig, '--namespace', NAMESPACE);
  }

  session(signal = new AbortController().signal): Session {
    return { client: this.client, namespace: NAMESPACE, signal };
  }

  /** A file in the bucket; JSON is compressed, as Velero has it. */
  store(key: string, value: unknown): void {
    const path = join(this.bucket, key);
    fs.mkdirSync(join(path, '..'), { recursive: true });
    const text = JSON.stringify(value);
    fs.writeFileSync(path, key.endsWith('.gz') ? gzipSync(text) : text);
  }

  /** Beside other files of its backup. */
  async storeTarball(key: string, items: readonly StoredItem[]): Promise<void> {
    const tar = await Array.fromAsync(writeTar(entriesOf(items)));
    fs.writeFileSync(join(this.bucket, key), gzipSync(Buffer.concat(tar)));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.client.close();
    await this.server[Symbol.asyncDispose]();
  }
}
