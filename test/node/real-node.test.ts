import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DATA_DOWNLOADS, DATA_UPLOADS, type DataUpload } from '../../src/kube/index.ts';
import { application, hasRealNode, RealNode } from '../support/real-node.ts';
import { makeTree } from '../support/trees.ts';
import { prng } from '../support/golden.ts';

describe.skipIf(!hasRealNode())('on a real node, with the real Velero', () => {
  let node: RealNode;
  beforeAll(async () => {
    node = await RealNode.start(22_400);
    await node.applyOverlay('beside-velero');
  });
  afterAll(async () => {
    await node[Symbol.asyncDispose]();
  });

  async function runApplication(
    namespace: string,
    claims: Parameters<typeof application>[1],
  ): Promise<void> {
    await node.applyPatiently(application(namespace, claims));
    await node.kubectl(
      '-n',
      namespace,
      'wait',
      '--for=condition=Ready',
      'pod/writer',
      '--timeout=60s',
    );
  }

  const list = (path: string): string =>
    execFileSync('find', ['.', '-mindepth', '1', '-printf', '%P %m %U %G %l %T@\n'], {
      cwd: path,
      encoding: 'utf8',
    })
      .split('\n')
      .sort()
      .join('\n');

  function assertSame(before: string, after: string): void {
    execFileSync('diff', ['-r', '--no-dereference', before, after]);
    expect(list(after)).toBe(list(before));
  }

  async function backUp(name: string, namespace: string, mover: string): Promise<DataUpload> {
    const flags = ['--snapshot-move-data', '--data-mover', mover, '--wait'];
    const text = await node.velero(
      'backup',
      'create',
      name,
      '--include-namespaces',
      namespace,
      ...flags,
    );
    expect(text).toMatch(/completed with status: Completed/);
    const labelSelector = `velero.io/backup-name=${name}`;
    const [upload] = await node.client.list(DATA_UPLOADS, { namespace: 'velero', labelSelector });
    return upload as DataUpload;
  }

  async function restore(name: string, backup: string, from: string, to: string): Promise<void> {
    const flags = ['--namespace-mappings', `${from}:${to}`, '--wait'];
    const text = await node.velero('restore', 'create', name, '--from-backup', backup, ...flags);
    expect(text).toMatch(/completed with status: Completed/);
  }

  it('volumes of files and blocks go to S3 and come back as they were', async () => {
    await runApplication('app', [{ name: 'data' }, { name: 'raw', block: true }]);
    const data = await node.volumePath('app', 'data');
    const raw = await node.volumePath('app', 'raw');
    makeTree(join(data, 'tree'), 'real-node');
    fs.chmodSync(join(data, 'tree/README'), 0o000);
    fs.chownSync(join(data, 'tree/README'), 5, 6);
    const file = fs.openSync(raw, 'r+');
    fs.writeSync(file, prng('raw', 5 << 20), 0, 5 << 20, 20 << 20);
    fs.closeSync(file);
    await backUp('b1', 'app', 'longshore');
    await restore('r1', 'b1', 'app', 'app-back');
    assertSame(data, await node.volumePath('app-back', 'data'));
    execFileSync('cmp', [raw, await node.volumePath('app-back', 'raw')]);
    await node.kopia('app', 'snapshot', 'verify', '--verify-files-percent=100');
    const left = await node.kubectl(
      '-n',
      'velero',
      'get',
      'pvc,volumesnapshot,pod',
      '-l',
      '!role',
      '-o',
      'name',
    );
    expect(
      left
        .trim()
        .split('\n')
        .filter((name) => !name.startsWith('pod/velero')),
    ).toEqual(['']);
  });

  it('what one data mover wrote the other one restores', async () => {
    const before = await node.volumePath('app', 'data');
    await backUp('by-velero', 'app', 'velero');
    const location = { namespace: 'velero', labelSelector: 'velero.io/backup-name=by-velero' };
    const uploads = await node.client.list(DATA_UPLOADS, location);
    expect(uploads.map(({ status }) => status?.phase)).toContain('Completed');
    await restore('r-velero', 'by-velero', 'app', 'by-velero');
    assertSame(before, await node.volumePath('by-velero', 'data'));
  });

  it('neither agents nor movers ask for what they may not do', async () => {
    const logs = await node.kubectl(
      '-n',
      'velero',
      'logs',
      '-l',
      'role=longshore-node-agent',
      '--tail=-1',
    );
    expect(logs).toMatch(/data upload completed/);
    expect(logs).toMatch(/data download completed/);
    expect(logs).not.toMatch(/forbidden/i);
    const downloads = await node.client.list(DATA_DOWNLOADS, { namespace: 'velero' });
    expect(downloads.length).toBeGreaterThan(0);
  });
});
