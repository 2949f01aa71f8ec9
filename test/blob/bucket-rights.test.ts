import { createHash, createHmac } from 'node:crypto';
import * as fs from 'node:fs';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { silentLogger } from '../../src/base/index.ts';
import { openBucket } from '../../src/blob/index.ts';
import { runMaintenance } from '../../src/repository/index.ts';
import { planGarbageCollection as collectGarbage } from '../../src/snapshot/index.ts';
import { bucketContract } from '../contract/bucket.ts';
import { tempDirectory } from '../support/kopia.ts';
import { hasStore, type ObjectStore, startStore } from '../support/object-stores.ts';
import { backUp, createTest, openTest } from '../support/repositories.ts';
import { makeTree } from '../support/trees.ts';

const page = fs.readFileSync(new URL('../../docs/storage.md', import.meta.url), 'utf8');
const [, policy = ''] = /minimum permissions of an identity:\s+```json\n(.*?)```/s.exec(page) ?? [];

const hashOf = (text: string): string => createHash('sha256').update(text).digest('hex');
const mac = (key: string | Buffer, text: string): Buffer =>
  createHmac('sha256', key).update(text).digest();

/** Credentials with the rights of the policy (AWS: API_AssumeRole, signature version 4). */
async function credentialsFor(store: ObjectStore): Promise<NodeJS.ProcessEnv> {
  const { environment, endpoint } = store;
  const { AWS_ACCESS_KEY_ID: id = '', AWS_SECRET_ACCESS_KEY: secret = '' } = environment;
  const fields = { Action: 'AssumeRole', Version: '2011-06-15', Policy: policy };
  const body = new URLSearchParams(fields).toString();
  const time = new Date().toISOString().replaceAll(/[-:]|\.\d+/g, '');
  const scope = [time.slice(0, 8), 'us-east-1', 'sts', 'aws4_request'];
  const type = 'application/x-www-form-urlencoded';
  const signed = { 'content-type': type, host: new URL(endpoint).host, 'x-amz-date': time };
  const names = Object.keys(signed).join(';');
  const headers = Object.entries(signed).map(([name, value]) => `${name}:${value}\n`);
  const request = ['POST', '/', '', headers.join(''), names, hashOf(body)].join('\n');
  const text = ['AWS4-HMAC-SHA256', time, scope.join('/'), hashOf(request)].join('\n');
  const key = scope.reduce<string | Buffer>(mac, `AWS4${secret}`);
  const signature = mac(key, text).toString('hex');
  const authorization = `AWS4-HMAC-SHA256 Credential=${id}/${scope.join('/')}, SignedHeaders=${names}, Signature=${signature}`;
  const ask = async (): Promise<string> => {
    const answer = await fetch(endpoint, {
      method: 'POST',
      headers: { 'content-type': type, 'x-amz-date': time, authorization },
      body,
    });
    return answer.text();
  };
  // A server that has just started refuses for a moment.
  const told = await vi.waitUntil(
    async () => {
      const text = await ask();
      return text.includes('Server not initialized') ? undefined : text;
    },
    { timeout: 30_000, interval: 200 },
  );
  const field = (name: string): string => {
    const [, value] = new RegExp(`<${name}>(.*?)</${name}>`).exec(told) ?? [];
    return value ?? expect.fail(told);
  };
  return {
    ...environment,
    AWS_ACCESS_KEY_ID: field('AccessKeyId'),
    AWS_SECRET_ACCESS_KEY: field('SecretAccessKey'),
    AWS_SESSION_TOKEN: field('SessionToken'),
  };
}

describe.skipIf(!hasStore('minio'))('an identity with the permissions of docs/storage.md', () => {
  const work = tempDirectory('bucket-rights');
  let store: ObjectStore;
  let environment: NodeJS.ProcessEnv;
  beforeAll(async () => {
    store = await startStore('minio');
    environment = await credentialsFor(store);
  }, 60_000);
  afterAll(async () => {
    fs.rmSync(work, { recursive: true, force: true });
    await (store as ObjectStore | undefined)?.[Symbol.asyncDispose]();
  });

  it('backs up and maintains a repository', async () => {
    const location = store.location('cluster-1/kopia/shop');
    makeTree(work, 'rights');
    await createTest(location, {}, { storage: { environment } });
    await using repository = await openTest(location, { storage: { environment } });
    await backUp(repository, work);
    const { tasks } = await runMaintenance(repository, {
      mode: 'full',
      safety: 'full',
      force: true,
      dryRun: false,
      signal: new AbortController().signal,
      logger: silentLogger,
      collectGarbage,
    });
    expect(tasks.length).toBeGreaterThan(3);
  });

  it('reaches nothing outside its prefix', async () => {
    const location = store.location('cluster-2');
    const opened = openTest(location, { storage: { environment } });
    await expect(opened).rejects.toMatchObject({ code: 'STORAGE_DENIED' });
    await using bucket = await openBucket(location, { environment });
    const put = bucket.put('backups/b1/b1.tar.gz', [Buffer.from('x')]);
    await expect(put).rejects.toMatchObject({ code: 'STORAGE_DENIED' });
  });

  describe('and its bucket', () => {
    let next = 0;
    bucketContract('minio', () =>
      openBucket(store.location(`cluster-1/contract-${next++}`), { environment }),
    );
  });
});
