import { generateKeyPairSync } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { blobId, openStorage, withRetries } from '../../src/blob/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import {
  hasStore,
  type ObjectStore,
  startStore,
  type StoreKind,
} from '../support/object-stores.ts';

const ID = blobId('backups/full1/full1-logs.gz');
const TEN_MINUTES_MS = 600_000;

describe.each(['minio', 'versitygw', 'azurite'] as const)('%s', (kind: StoreKind) => {
  describe.skipIf(!hasStore(kind))('real', () => {
    let store: ObjectStore;
    beforeAll(async () => {
      store = await startStore(kind);
    });
    afterAll(() => store[Symbol.asyncDispose]());

    it('hands out blobs byte for byte, to whoever has the URL', async () => {
      const location = store.location('cluster 1/über');
      const { environment } = store;
      await using storage = withRetries(await openStorage(location, { environment }));
      // Gzip's first bytes: nobody on the way may take it for the encoding of the answer.
      const data = Buffer.from('1f8b0800000000000003010000ffff0000000000000000', 'hex');
      await storage.putBlob(ID, [data]);
      const url = await storage.signedUrl(ID, TEN_MINUTES_MS);
      const answer = await fetch(url);
      expect(answer.headers.get('content-encoding')).toBeNull();
      expect(Buffer.from(await answer.arrayBuffer()).equals(data)).toBe(true);
      const secrets = Object.values(environment).filter((value = '') => value.length > 20);
      for (const secret of secrets) expect(url).not.toContain(secret);
    });
  });
});

describe('S3', () => {
  const environment = {
    HOME: '/nowhere',
    AWS_ACCESS_KEY_ID: 'key',
    AWS_SECRET_ACCESS_KEY: 'secret',
    AWS_EC2_METADATA_DISABLED: 'true',
  };
  const location = (parameters: Record<string, string>): string =>
    `s3://backups/c1/?${new URLSearchParams({ region: 'eu-west-3', ...parameters }).toString()}`;
  const urlOf = async (text: string, more: NodeJS.ProcessEnv = {}): Promise<URL> => {
    await using storage = await openStorage(text, { environment: { ...environment, ...more } });
    return new URL(await storage.signedUrl(ID, TEN_MINUTES_MS));
  };

  it('names the address that is for others, in the way that the location names buckets', async () => {
    const endpoint = 'http://minio.velero.svc:9000';
    const publicEndpoint = 'https://backups.example:8443';
    expect((await urlOf(location({ endpoint }))).origin).toBe(endpoint);
    const url = await urlOf(location({ endpoint, publicEndpoint }));
    expect(url.origin).toBe(publicEndpoint);
    expect(url.pathname).toBe('/backups/c1/backups/full1/full1-logs.gz');
    const hosted = await urlOf(location({ endpoint, publicEndpoint, pathStyle: 'false' }));
    expect(hosted.host).toBe('backups.backups.example:8443');
    // Amazon's own, with nothing but the public address given.
    expect((await urlOf(location({ publicEndpoint }))).origin).toBe(publicEndpoint);
  });

  it('is good for so long, in its region, with the token of a session', async () => {
    const { searchParams } = await urlOf(location({}), { AWS_SESSION_TOKEN: 'session' });
    expect(searchParams.get('X-Amz-Expires')).toBe('600');
    expect(searchParams.get('X-Amz-Credential')).toContain('/eu-west-3/s3/');
    expect(searchParams.get('X-Amz-Security-Token')).toBe('session');
    expect(searchParams.get('X-Amz-SignedHeaders')).toBe('host');
  });

  it('says that a key of the customer makes URLs impossible', async () => {
    const sseCustomerKeyFile = join(tempDirectory('key'), 'key');
    writeFileSync(sseCustomerKeyFile, Buffer.alloc(32, 7));
    await expect(urlOf(location({ sseCustomerKeyFile }))).rejects.toMatchObject({
      code: 'UNSUPPORTED_URL',
      message: expect.stringContaining('SSE-C') as string,
    });
  });

  it("counts from the service's time where this machine's clock is wrong", async () => {
    // As a service whose clock is two hours ahead: it says so with its refusal.
    const dates: string[] = [];
    const aheadMs = 2 * 3_600_000;
    const server = createServer((request, response) => {
      dates.push(String(request.headers['x-amz-date']));
      const isFirst = dates.length === 1;
      response.writeHead(isFirst ? 403 : 200, {
        date: new Date(Date.now() + aheadMs).toUTCString(),
        ...(isFirst
          ? { 'content-type': 'application/xml' }
          : { etag: '"x"', 'content-length': '1', 'last-modified': new Date().toUTCString() }),
      });
      response.end(isFirst && request.method !== 'HEAD' ? SKEWED : undefined);
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    try {
      await using storage = await openStorage(location({ endpoint }), { environment });
      await storage.getBlob(ID).catch(() => undefined);
      const url = new URL(await storage.signedUrl(ID, TEN_MINUTES_MS));
      const at = url.searchParams.get('X-Amz-Date') ?? '';
      const [, y, mo, d, h, mi, s] = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(at) ?? [];
      const signedMs = Date.parse(`${y}-${mo}-${d}T${h}:${mi}:${s}Z`);
      expect(Math.abs(signedMs - Date.now() - aheadMs)).toBeLessThan(60_000);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });
});

const SKEWED =
  '<?xml version="1.0"?><Error><Code>RequestTimeTooSkewed</Code><Message>skewed</Message></Error>';

it('a container that is reached by a SAS token hands out none of it', async () => {
  const environment = { HOME: '/nowhere', AZURE_STORAGE_SAS_TOKEN: 'sv=2024&sig=hidden' };
  await using storage = await openStorage('azblob://backups/?account=a', { environment });
  const error: unknown = await storage.signedUrl(ID, 1000).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: 'UNSUPPORTED_URL' });
  expect(String(error)).not.toContain('hidden');
});

describe('Google', () => {
  it("signs with a service account's key, without asking anybody", async () => {
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const credentialsFile = join(tempDirectory('gcs'), 'key.json');
    const clientEmail = 'backup@project.iam.gserviceaccount.com';
    writeFileSync(
      credentialsFile,
      JSON.stringify({
        type: 'service_account',
        client_email: clientEmail,
        private_key: privateKey.export({ type: 'pkcs8', format: 'pem' }),
        token_uri: 'http://127.0.0.1:1/token',
      }),
    );
    const query = new URLSearchParams({ credentialsFile });
    await using storage = await openStorage(`gs://backups/c1/?${query.toString()}`);
    const url = new URL(await storage.signedUrl(ID, TEN_MINUTES_MS));
    expect(url.origin + url.pathname).toBe(
      'https://storage.googleapis.com/backups/c1/backups/full1/full1-logs.gz',
    );
    expect(url.searchParams.get('X-Goog-Expires')).toBe('600');
    expect(url.searchParams.get('X-Goog-Credential')).toContain(clientEmail);
    query.set('endpoint', 'https://gcs.example');
    await using elsewhere = await openStorage(`gs://backups/c1/?${query.toString()}`);
    expect(new URL(await elsewhere.signedUrl(ID, 1000)).host).toBe('gcs.example');
  });

  it('says what is missing where nothing can sign', async () => {
    await using storage = await openStorage('gs://backups/?endpoint=http://127.0.0.1:1');
    await expect(storage.signedUrl(ID, 1000)).rejects.toMatchObject({
      code: 'UNSUPPORTED_URL',
      message: expect.stringContaining('iam.serviceAccounts.signBlob') as string,
    });
  });
});

it('a directory says where the file is', async () => {
  const path = tempDirectory('no-urls');
  await using storage = await openStorage(path);
  await expect(storage.signedUrl(ID, 1000)).rejects.toMatchObject({
    code: 'UNSUPPORTED_URL',
    message: `file://${path} is a directory, which has no URLs for others: read ${ID} there`,
  });
});
