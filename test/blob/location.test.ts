import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { absoluteLocation, openStorage, parseLocation } from '../../src/blob/index.ts';

describe('locations', () => {
  it.each([
    [
      's3://bucket/a/b/?region=eu-west-1&endpoint=http://[::1]:9000&pathStyle=false',
      {
        kind: 's3',
        bucket: 'bucket',
        prefix: 'a/b/',
        region: 'eu-west-1',
        endpoint: 'http://[::1]:9000',
        pathStyle: false,
        displayName: 's3://bucket/a/b/',
      },
    ],
    ['s3://bucket', { bucket: 'bucket', prefix: '', displayName: 's3://bucket/' }],
    ['s3://bucket/with%20space', { prefix: 'with space/' }],
    // Ceph's name of a bucket of another tenant.
    ['s3://team:bucket/p/', { bucket: 'team:bucket', displayName: 's3://team:bucket/p/' }],
    ['s3://team%3A123/p/', { bucket: 'team:123' }],
    ['s3://:bucket/?region=r', { bucket: ':bucket', region: 'r' }],
    ['azblob://container/p?account=a', { kind: 'azblob', bucket: 'container', account: 'a' }],
    ['gs://bucket/p/', { kind: 'gs', bucket: 'bucket', prefix: 'p/' }],
    ['file:///tmp/x', { kind: 'file', path: '/tmp/x' }],
    ['/tmp/x', { kind: 'file', path: '/tmp/x' }],
  ])('%s', (location, expected) => {
    expect(parseLocation(location)).toMatchObject(expected);
  });

  it.each([
    ['s9://bucket/', /scheme "s9:\/\/" is not known; use a path or file:\/\/, s3:\/\//],
    ['s3:///prefix', /names no bucket/],
    [
      's3://bucket/?colour=red',
      /"colour" is not a setting of s3:\/\/ locations; its settings are region, /,
    ],
    ['s3://bucket/?pathStyle=perhaps', /"perhaps" cannot be the pathStyle/],
    ['s3://bucket/?endpoint=ftp://x', /"ftp:\/\/x" cannot be the endpoint/],
    ['s3://bucket/?checksum=crc64', /cannot be the checksum/],
    ['s3://bucket/?secretAccessKey=abc', /must not be part of a location/],
    ['s3://user:pw@bucket/', /must not have a user, a password or a port/],
    ['s3://bucket:9000/', /must not have a user, a password or a port/],
    ['s3://a:b:c/', /not a path or a storage URL/],
    ['azblob://c/?sasToken=abc', /must not be part of a location/],
    ['azblob://c/?insecureTls=true', /"insecureTls" is not a setting of azblob:\/\//],
    ['gs://bucket/?region=eu', /"region" is not a setting of gs:\/\//],
    [
      's3://bucket/100%/',
      /has a % that does not begin an escaped character: write %25 for a percent sign/,
    ],
    ['gs://bucket/%ff/', /has a % that does not begin an escaped character/],
    ['file:///data/100%', /has a % that does not begin an escaped character/],
    ['file:///data%2Frepo', /is not a path/],
    ['file://host/path', /not a path or a storage URL/],
  ])('%s is refused', (location, message) => {
    expect(() => parseLocation(location)).toThrow(message);
    expect(() => parseLocation(location)).toThrow(
      expect.objectContaining({ code: 'BAD_LOCATION' }) as Error,
    );
  });

  it.each([
    ['azblob://c/', {}, /needs \?account=/],
    ['azblob://c/?account=a&keyVariable=NOPE', {}, /NOPE is set neither/],
    ['azblob://c/?account=a', { AZURE_CLOUD_NAME: 'Moon' }, /AZURE_CLOUD_NAME must be one of/],
    ['azblob://c/?account=a&credentialsFile=/nope', {}, /cannot read credentialsFile/],
    ['s3://b/?caFile=/nope', {}, /cannot read caFile/],
    ['s3://b/?caFile=/etc/hostname', {}, /holds no PEM certificate/],
    ['s3://b/?sseCustomerKeyFile=/nope', {}, /cannot read sseCustomerKeyFile/],
    ['gs://b/?insecureTls=true', {}, /NODE_EXTRA_CA_CERTS/],
  ])('%s cannot be opened', async (location, environment, message) => {
    await expect(openStorage(location, { environment })).rejects.toThrow(message);
  });
});

it('a location that is kept names its files from the root on, and is the same otherwise', () => {
  expect(absoluteLocation('repo')).toBe(resolve('repo'));
  for (const location of [
    's3://bucket',
    's3://team:bucket/p/',
    's3://b/with%20space/?region=r&caFile=/etc/ca.pem',
  ]) {
    expect(absoluteLocation(location)).toBe(location);
  }
  const files = 'caFile=ca.pem&credentialsFile=../keys&sseCustomerKeyFile=a%20b';
  const kept = absoluteLocation(`s3://b/p/?endpoint=http://h:1&${files}`);
  expect(parseLocation(kept)).toMatchObject({
    bucket: 'b',
    prefix: 'p/',
    endpoint: 'http://h:1',
    caFile: resolve('ca.pem'),
    credentialsFile: resolve('../keys'),
    sseCustomerKeyFile: resolve('a b'),
  });
});
