import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { blobId, type BlobStorage, openStorage } from '../../src/blob/index.ts';

type Handler = (request: IncomingMessage, response: ServerResponse) => void;

/**
 * A storage service that requires tokens, and a service that issues them to a workload identity.
 */
async function startServices(token: Handler, objects: Handler, stallMs = 5000): Promise<Services> {
  const directory = mkdtempSync(join(tmpdir(), 'gcs-token-'));
  const server = createServer((request, response) => {
    request.resume();
    (request.url === '/token' ? token : objects)(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const subject = join(directory, 'subject');
  const file = join(directory, 'credentials.json');
  writeFileSync(subject, 'subject-token');
  writeFileSync(
    file,
    JSON.stringify({
      type: 'external_account',
      audience: 'longshore',
      subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
      token_url: `${endpoint}/token`,
      credential_source: { file: subject },
    }),
  );
  const parameters = new URLSearchParams({ endpoint, credentialsFile: file });
  const storage = await openStorage(`gs://backups/?${parameters.toString()}`, {
    environment: {},
    stallMs,
  });
  return {
    storage,
    file,
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      rmSync(directory, { recursive: true, force: true });
    },
  };
}

interface Services extends AsyncDisposable {
  readonly storage: BlobStorage;
  /** With the credentials. */
  readonly file: string;
}

const json = (response: ServerResponse, status: number, value: object): void => {
  response.writeHead(status, { 'content-type': 'application/json' });
  response.end(JSON.stringify(value));
};

const TOKEN = {
  access_token: 'access-token',
  issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
  token_type: 'Bearer',
  expires_in: 3600,
};

const giveToken: Handler = (_request, response) => json(response, 200, TOKEN);

it('sends its token with every request, and asks for it once', async () => {
  const seen: (string | undefined)[] = [];
  let asked = 0;
  await using services = await startServices(
    (request, response) => {
      asked++;
      giveToken(request, response);
    },
    ({ headers }, response) => {
      seen.push(headers.authorization);
      response.writeHead(204).end();
    },
  );
  await services.storage.deleteBlob(blobId('p1'));
  await services.storage.deleteBlob(blobId('p2'));
  expect(seen).toEqual(['Bearer access-token', 'Bearer access-token']);
  expect(asked).toBe(1);
});

it.each([
  [400, { code: 'STORAGE_FAILED', retry: 'never' }],
  [403, { code: 'STORAGE_DENIED', retry: 'never' }],
  [412, { code: 'STORAGE_FAILED', retry: 'never' }],
  [503, { code: 'STORAGE_THROTTLED', retry: 'backoff' }],
])('a token refused with %s says nothing of the blob', async (status, failure) => {
  await using services = await startServices(
    (_request, response) => json(response, status, { error: 'invalid_grant' }),
    (_request, response) => response.writeHead(204).end(),
  );
  const put = services.storage.putBlob(blobId('p1'), [Buffer.of(1)], { doNotRecreate: true });
  await expect(put).rejects.toMatchObject(failure);
  await expect(put).rejects.toThrow(/token/);
});

it('a token that does not come stops nobody for good', async () => {
  let asked = 0;
  await using services = await startServices(
    (request, response) => {
      if (asked++ > 0) giveToken(request, response);
    },
    (_request, response) => response.writeHead(204).end(),
    300,
  );
  const remove = (): Promise<void> => services.storage.deleteBlob(blobId('p1'));
  const both = await Promise.allSettled([remove(), remove()]);
  expect(both).toMatchObject([
    { reason: { code: 'STORAGE_STALLED', retry: 'backoff' } },
    { reason: { code: 'STORAGE_STALLED', retry: 'backoff' } },
  ]);
  expect(asked).toBe(1);
  await remove();
});

it('asks for another token where the service refuses the one that it gave', async () => {
  const bearers: (string | undefined)[] = [];
  let asked = 0;
  await using services = await startServices(
    (_request, response) => json(response, 200, { ...TOKEN, access_token: `token-${++asked}` }),
    ({ headers }, response) => {
      bearers.push(headers.authorization);
      response.writeHead(headers.authorization === 'Bearer token-1' ? 401 : 204).end();
    },
  );
  await Promise.all(['p1', 'p2', 'p3'].map((id) => services.storage.deleteBlob(blobId(id))));
  expect(bearers.sort()).toEqual([...'111222'].map((n) => `Bearer token-${n}`));
  expect(asked).toBe(2);
});

it('a token that is refused again ends the request', async () => {
  let requests = 0;
  await using services = await startServices(giveToken, (_request, response) => {
    requests++;
    response.writeHead(401).end();
  });
  await expect(services.storage.deleteBlob(blobId('p1'))).rejects.toMatchObject({
    code: 'STORAGE_DENIED',
    retry: 'never',
  });
  expect(requests).toBe(2);
});

it('takes the credentials that were put into the file meanwhile', async () => {
  await using services = await startServices(
    (request, response) => {
      let body = '';
      request.on('data', (piece: Buffer) => (body += piece.toString()));
      request.on('end', () => {
        if (body.includes('replaced')) giveToken(request, response);
        else json(response, 400, { error: 'invalid_grant' });
      });
    },
    (_request, response) => response.writeHead(204).end(),
  );
  const { file, storage } = services;
  await expect(storage.deleteBlob(blobId('p1'))).rejects.toThrow(/token/);
  const text = readFileSync(file, 'utf8');
  writeFileSync(file, text.replace('"longshore"', '"replaced"'));
  await storage.deleteBlob(blobId('p1'));
});
