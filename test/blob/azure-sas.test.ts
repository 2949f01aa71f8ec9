import { createHmac } from 'node:crypto';
import * as fs from 'node:fs';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { blobId, openStorage } from '../../src/blob/index.ts';
import { tempDirectory } from '../support/kopia.ts';

/** A backup may take longer than the SAS token lasts that it began with. */
const work = tempDirectory('azure-sas');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));

/**
 * A server that accepts puts of valid credentials, as the test defines them. The storage reads its
 * credentials from a file.
 */
async function startAzure(
  credentials: string,
  whoAsks: (request: IncomingMessage) => string,
  isValid: (who: string) => boolean,
) {
  const asked: string[] = [];
  const server = createServer((incoming, outgoing) => {
    incoming.resume().once('end', () => {
      const who = whoAsks(incoming);
      asked.push(who);
      if (isValid(who)) outgoing.writeHead(201, { etag: '"0"' });
      else outgoing.writeHead(403, { 'x-ms-error-code': 'AuthenticationFailed' });
      outgoing.end();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const file = join(work, 'credentials');
  fs.writeFileSync(file, credentials);
  const parameters = new URLSearchParams({
    account: 'a',
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    credentialsFile: file,
  });
  const storage = await openStorage(`azblob://backups/?${parameters.toString()}`, {
    environment: {},
  });
  return {
    asked,
    put: (name: string): Promise<void> => storage.putBlob(blobId(name), [Buffer.of(1)]),
    grant: (text: string) => {
      fs.writeFileSync(file, text);
    },
    [Symbol.asyncDispose]: async () => {
      await storage.close();
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

it('a SAS token that ended is read again from its file, and all requests go on with the new one', async () => {
  let valid = 'first';
  const settings = (signature: string): string =>
    `AZURE_STORAGE_SAS_TOKEN=sv=2024-01-01&sp=rwdl&sig=${signature}\n`;
  await using azure = await startAzure(
    settings('first'),
    ({ url = '' }) => new URL(url, 'http://stub').searchParams.get('sig') ?? '',
    (signature) => signature === valid,
  );
  const { asked, put, grant } = azure;
  await put('p1');
  valid = 'second';
  // The file has no new key yet. This is an error, without endless retries.
  await expect(put('p2')).rejects.toMatchObject({ code: 'STORAGE_DENIED', retry: 'never' });
  grant(settings('second'));
  await Promise.all(['p3', 'p4', 'p5'].map(put));
  await put('p6');
  expect(asked.slice(0, 2)).toEqual(['first', 'first']);
  expect(asked.at(-1)).toBe('second');
  expect(asked.filter((signature) => signature === 'second')).toHaveLength(4);
});

/** Returns the key that signed a request (Shared Key, for a request without a query). */
function signerOf({ method, headers, url }: IncomingMessage, keys: readonly string[]): string {
  const named = (name: string): string => String(headers[name] ?? '');
  const length = named('content-length') === '0' ? '' : named('content-length');
  const ours = Object.keys(headers).filter((name) => name.startsWith('x-ms-'));
  const text = [
    ...[method, named('content-encoding'), named('content-language'), length],
    ...['content-md5', 'content-type', 'date', 'if-modified-since', 'if-match'].map(named),
    ...['if-none-match', 'if-unmodified-since', 'range'].map(named),
    ...ours.sort().map((name) => `${name}:${named(name)}`),
    `/a${url ?? ''}`,
  ].join('\n');
  const signedBy = (key: string): string =>
    createHmac('sha256', Buffer.from(key, 'base64')).update(text).digest('base64');
  return keys.find((key) => named('authorization') === `SharedKey a:${signedBy(key)}`) ?? '';
}

it('a key that was replaced is read again from its file, and nothing is asked twice with the same key', async () => {
  const first = Buffer.from('first').toString('base64');
  const second = Buffer.from('second').toString('base64');
  let valid = first;
  await using azure = await startAzure(
    `AZURE_STORAGE_KEY=${first}\n`,
    (request) => signerOf(request, [first, second]),
    (signer) => signer === valid,
  );
  const { asked, put, grant } = azure;
  await put('p1');
  valid = second;
  await expect(put('p2')).rejects.toMatchObject({ code: 'STORAGE_DENIED', retry: 'never' });
  expect(asked).toEqual([first, first]);
  grant(`AZURE_STORAGE_KEY=${second}\n`);
  await Promise.all(['p3', 'p4', 'p5'].map(put));
  await put('p6');
  expect(asked.at(-1)).toBe(second);
  expect(asked.filter((signer) => signer === second)).toHaveLength(4);
});

it('a page that repeats the URL it was asked for brings neither the token nor itself into a message', async () => {
  const server = createServer((incoming, outgoing) => {
    incoming.resume().once('end', () => {
      const url = incoming.url ?? '';
      outgoing.writeHead(403, { 'content-type': 'text/html' });
      outgoing.end(
        `<html>no <a href="${url.replaceAll('&', '&amp;')}">${url}</a> ${encodeURIComponent(url)} ${'x'.repeat(100_000)}</html>`,
      );
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const location = `azblob://backups/?${new URLSearchParams({ account: 'a', endpoint }).toString()}`;
    const environment = { AZURE_STORAGE_SAS_TOKEN: 'sv=2024-01-01&sp=rwdl&sig=VERYSECRET' };
    await using storage = await openStorage(location, { environment });
    const id = blobId('p1');
    for (const operation of [
      () => storage.getBlob(id),
      () => storage.putBlob(id, [Buffer.of(1)]),
      () => storage.deleteBlob(id),
      () => Array.fromAsync(storage.listBlobs('p')),
    ]) {
      const error = await operation().then(
        () => undefined,
        (thrown: unknown) => thrown as Error,
      );
      expect(error).toMatchObject({ code: 'STORAGE_DENIED' });
      expect(error?.message).toContain('sig=***');
      expect(error?.message).not.toContain('VERYSECRET');
      expect(error?.message.length).toBeLessThan(600);
    }
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});
