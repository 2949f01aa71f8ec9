import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { RunningAgent } from '../../src/cli/demo/dev-environment.ts';
import { STORAGE_CLASS } from '../../src/dev/index.ts';
import type { BackupPvcConfig, ExposeConfig } from '../../src/exposer/index.ts';
import {
  CONFIG_MAPS,
  DATA_UPLOADS,
  type DataUpload,
  type NewObject,
  PVCS,
  SECRETS,
  type Secret,
} from '../../src/kube/index.ts';
import { NAMESPACE, TestCluster } from '../support/dev-cluster.ts';

const NAMES = { secretNames: ['kms-token'], configMapNames: ['vault'] };
const COPY = { namespace: NAMESPACE, name: 'kms-token' };

describe('Secrets and ConfigMaps that a driver reads beside the PVC', () => {
  let cluster: TestCluster;
  let agent: RunningAgent | undefined;
  beforeAll(async () => {
    cluster = await TestCluster.start({
      nodes: ['node-1'],
      moverEnvironment: { LONGSHORE_UPLOAD_LIMIT: '4MiB', LONGSHORE_DOWNLOAD_LIMIT: '4MiB' },
    });
    for (const [namespace, token] of [
      ['app', 'b25l'],
      ['other', 'dHdv'],
    ] as const) {
      await cluster.makeNamespace(namespace);
      const metadata = { namespace, name: 'kms-token', labels: { tenant: 'mine' } };
      const data = { token };
      await cluster.client.create(SECRETS, { metadata, type: 'Opaque', data } as NewObject<Secret>);
      await cluster.client.create(CONFIG_MAPS, {
        metadata: { namespace, name: 'vault' },
        data: { address: namespace },
      });
    }
  });
  afterAll(() => cluster[Symbol.asyncDispose]());
  afterEach(async () => {
    await agent?.stop();
    agent = undefined;
  });

  const startAgent = (names: BackupPvcConfig, prepareTimeoutMs = 60_000): void => {
    const config: ExposeConfig = {
      loadAffinity: [],
      backupPvc: { [STORAGE_CLASS]: names },
      restoreSecrets: names,
      ignoreDelayBinding: false,
      podResources: {},
    };
    agent = cluster.startAgent('node-1', {
      exposer: { daemonSet: 'node-agent', config },
      concurrency: 4,
      prepareTimeoutMs,
    });
  };
  async function upload(name: string, namespace = 'app', bytes = 1 << 20): Promise<string> {
    const pvc = `${name}-data`;
    const source = await cluster.makeVolume(namespace, pvc);
    fs.writeFileSync(join(source, 'data.bin'), randomBytes(bytes));
    const snapshot = await cluster.makeSnapshot(namespace, pvc);
    await cluster.createUpload(name, { namespace, pvc, snapshot });
    return source;
  }
  const copy = (): Promise<Secret | undefined> => cluster.client.find(SECRETS, COPY);
  const isGone = async (): Promise<void> => {
    await expect.poll(copy).toBeUndefined();
    const ref = { namespace: NAMESPACE, name: 'vault' };
    await expect.poll(() => cluster.client.find(CONFIG_MAPS, ref)).toBeUndefined();
  };

  it('are copied while a volume is moved, and deleted after it', async () => {
    startAgent(NAMES);
    const source = await upload('moved', 'app', 8 << 20);
    const { metadata } = await cluster.waitUpload('moved', 'InProgress');
    const found = await copy();
    expect(found).toMatchObject({
      type: 'Opaque',
      data: { token: 'b25l' },
      metadata: {
        annotations: { 'longshore.io/copied-from': 'app' },
        labels: { 'velero.io/exclude-from-backup': 'true' },
        ownerReferences: [{ uid: metadata.uid, controller: false }],
      },
    });
    expect(found?.metadata.labels).not.toHaveProperty('tenant');
    const { status } = await cluster.waitUpload('moved');
    expect(status).toMatchObject({ phase: 'Completed' });
    await isGone();

    await cluster.makeTarget('app', 'back');
    const snapshotID = status?.snapshotID ?? '';
    const download = { namespace: 'app', pvc: 'back', snapshotID, sourceNamespace: 'app' };
    await cluster.createDownload('back', download);
    await cluster.waitDownload('back', 'InProgress');
    expect(await copy()).toMatchObject({ data: { token: 'b25l' } });
    expect((await cluster.waitDownload('back')).status).toMatchObject({ phase: 'Completed' });
    await isGone();
    execFileSync('diff', ['-r', source, await cluster.volumeOf('app', 'back')]);
  });

  it('are shared by a namespace, and another namespace waits for its own', async () => {
    startAgent(NAMES);
    await upload('slow', 'app', 16 << 20);
    await cluster.waitUpload('slow', 'InProgress');
    await upload('quick');
    expect((await cluster.waitUpload('quick')).status).toMatchObject({ phase: 'Completed' });
    expect(await copy()).toMatchObject({ data: { token: 'b25l' } });
    await upload('third', 'other');
    await cluster.waitUpload('slow');
    await cluster.waitUpload('third', 'InProgress');
    expect(await copy()).toMatchObject({ data: { token: 'dHdv' } });
    expect((await cluster.waitUpload('third')).status).toMatchObject({ phase: 'Completed' });
    await isGone();
  });

  it('are waited for no longer than the prepare timeout', async () => {
    await cluster.client.create(SECRETS, {
      metadata: { ...COPY, annotations: { 'longshore.io/copied-from': 'gone' } },
    });
    startAgent(NAMES, 2000);
    await upload('impatient');
    const { status } = await cluster.waitUpload('impatient');
    expect(status).toMatchObject({ phase: 'Failed' });
    expect(status?.message).toMatch(
      /error copying Secret kms-token from app to velero: another operation still uses/,
    );
    await cluster.client.delete(SECRETS, COPY);
  });

  it('never replace an object of the same name', async () => {
    await cluster.client.create(SECRETS, { metadata: COPY, data: { token: 'b3du' } });
    startAgent(NAMES);
    await upload('foreign');
    const { status } = await cluster.waitUpload('foreign');
    expect(status?.message).toMatch(/Secret velero\/kms-token already, and it is no copy/);
    expect(await copy()).toMatchObject({ data: { token: 'b3du' } });
    await cluster.client.delete(SECRETS, COPY);
  });

  it.each([
    ['is missing', { secretNames: ['missing'] }, /error copying Secret missing from app/],
    ['holds a credential for the API', { secretNames: ['account'] }, /is never copied/],
  ])('fail the move if one %s', async (what, names, message) => {
    await cluster.client
      .create(SECRETS, {
        metadata: {
          namespace: 'app',
          name: 'account',
          annotations: { 'kubernetes.io/service-account.name': 'default' },
        },
        type: 'kubernetes.io/service-account-token',
      } as NewObject<Secret>)
      .catch(() => undefined);
    startAgent(names);
    const name = what.replaceAll(' ', '-').toLowerCase();
    await upload(name);
    const { status } = await cluster.waitUpload(name);
    expect(status).toMatchObject({ phase: 'Failed' });
    expect(status?.message).toMatch(message);
  });

  it('are deleted also by an agent with other settings', async () => {
    startAgent(NAMES);
    await upload('left', 'app', 16 << 20);
    await cluster.waitUpload('left', 'InProgress');
    await agent?.stop();
    startAgent({});
    const ref = { namespace: NAMESPACE, name: 'left' };
    await cluster.client.patch(DATA_UPLOADS, ref, { spec: { cancel: true } });
    await cluster.waitUpload('left');
    await isGone();
    const { metadata } = await cluster.client.get<DataUpload>(DATA_UPLOADS, ref);
    expect(metadata.annotations).toMatchObject({
      'longshore.io/driver-secrets': 'secrets/kms-token,configmaps/vault',
    });
  });

  it('are no obstacle where the application is in the same namespace', async () => {
    startAgent({ secretNames: ['kms-token'] });
    await cluster.client.create(SECRETS, { metadata: COPY, data: { token: 'b3du' } });
    await upload('local', NAMESPACE);
    expect((await cluster.waitUpload('local')).status).toMatchObject({ phase: 'Completed' });
    expect(await copy()).toMatchObject({ data: { token: 'b3du' } });
    await cluster.client.delete(SECRETS, COPY);
  });

  it('readWriteOncePod is the access mode of the intermediate volume', async () => {
    startAgent({ readWriteOncePod: true });
    await upload('alone', 'app', 8 << 20);
    await cluster.waitUpload('alone', 'InProgress');
    const claim = await cluster.client.get(PVCS, { namespace: NAMESPACE, name: 'alone' });
    expect(claim.spec.accessModes).toEqual(['ReadWriteOncePod']);
    expect((await cluster.waitUpload('alone')).status).toMatchObject({ phase: 'Completed' });
  });
});
