import { type ChildProcess, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BACKUP_STORAGE_LOCATIONS, CONFIG_MAPS, type Pod, PODS } from '../../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../../support/dev-cluster.ts';
import { packagedProgram } from '../../support/package.ts';

const BIN = packagedProgram();
const MIB = 2 ** 20;

function bytesBelow(directory: string): number {
  let bytes = 0;
  for (const entry of fs.readdirSync(directory, { recursive: true, withFileTypes: true })) {
    if (entry.isFile()) bytes += fs.statSync(join(entry.parentPath, entry.name)).size;
  }
  return bytes;
}

describe('settings of data movers in the node-agent ConfigMap', () => {
  let cluster: TestCluster;
  let agent: ChildProcess;
  beforeAll(async () => {
    cluster = await TestCluster.start({ nodes: ['node-1'] });
    const longshore = {
      compression: 'zstd',
      memoryLimit: '200MiB',
      uploadLimit: '100MiB',
      storageLocations: { far: { compression: 'none', parallelFilesUpload: 3 } },
    };
    await cluster.client.create(CONFIG_MAPS, {
      metadata: { name: 'settings', namespace: NAMESPACE },
      data: { 'config.json': JSON.stringify({ longshore }) },
    });
    const { PATH, HOME } = process.env;
    agent = spawn(
      BIN,
      [
        ...['node-agent', 'server', '--node', 'node-1', '--node-agent-configmap', 'settings'],
        ...['--metrics-address', '127.0.0.1:0', '--log-format', 'json'],
      ],
      {
        env: { PATH, HOME, KUBECONFIG: cluster.kubeconfig },
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    );
    if (agent.stdout === null) throw new Error('no stdout');
    for await (const line of createInterface({ input: agent.stdout })) {
      if (line.includes('node-agent is running')) break;
    }
    agent.stdout.resume();
  });
  afterAll(async () => {
    agent.kill('SIGKILL');
    await cluster[Symbol.asyncDispose]();
  });

  it('reach them, and those of their storage location come first', async () => {
    const far = join(cluster.directory, 'far');
    fs.mkdirSync(far);
    await cluster.client.create(BACKUP_STORAGE_LOCATIONS, {
      metadata: { name: 'far', namespace: NAMESPACE },
      spec: {
        provider: 'velero.io/fs',
        config: { fspath: far },
        objectStorage: { bucket: 'far' },
      },
    });
    await cluster.makeNamespace('app');
    const source = await cluster.makeVolume('app', 'data');
    fs.writeFileSync(join(source, 'log'), 'the same line again and again\n'.repeat(280_000));
    const stored: Record<string, number> = {};
    const variables: Record<string, Record<string, string | undefined>> = {};
    const pods: Pod[] = [];
    const watching = new AbortController();
    const watched = (async () => {
      const scope = { namespace: NAMESPACE, signal: watching.signal };
      const { resourceVersion } = await cluster.client.listPage(PODS, scope);
      for await (const event of cluster.client.watch(PODS, { ...scope, resourceVersion })) {
        if (event.type === 'ADDED') pods.push(event.object);
      }
    })().catch(() => undefined);
    for (const [backupStorageLocation, directory] of [
      ['default', cluster.cluster.storageDirectory],
      ['far', far],
    ] as const) {
      const name = `up-${backupStorageLocation}`;
      const snapshot = await cluster.makeSnapshot('app', 'data');
      const spec = { namespace: 'app', pvc: 'data', snapshot, backupStorageLocation };
      await cluster.createUpload(name, spec);
      const { status } = await cluster.waitUpload(name);
      expect(status?.message ?? '').toBe('');
      expect(status?.phase).toBe('Completed');
      stored[backupStorageLocation] = bytesBelow(directory);
      const env = pods.find(({ metadata }) => metadata.name === name)?.spec.containers[0]?.env;
      variables[backupStorageLocation] = Object.fromEntries(
        (env ?? []).map((variable) => [variable.name, variable.value]),
      );
    }
    watching.abort();
    await watched;
    expect(stored.default).toBeLessThan(2 * MIB);
    expect(stored.far).toBeGreaterThan(7 * MIB);
    const common = { LONGSHORE_MEMORY_LIMIT: '200MiB', LONGSHORE_UPLOAD_LIMIT: '100MiB' };
    expect(variables.default).toMatchObject({ ...common, LONGSHORE_COMPRESSION: 'zstd' });
    expect(variables.default).not.toHaveProperty('LONGSHORE_PARALLEL_FILES_UPLOAD');
    expect(variables.far).toMatchObject({
      ...common,
      LONGSHORE_COMPRESSION: 'none',
      LONGSHORE_PARALLEL_FILES_UPLOAD: '3',
    });
  }, 120_000);
});
