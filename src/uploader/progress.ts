/** Counters of an upload, updated as it runs. */
export interface UploadCounters {
  files: number;
  cachedFiles: number;
  directories: number;
  /** Entries skipped by rules or types. They are not errors. */
  skipped: number;
  excludedFiles: number;
  excludedDirectories: number;
  excludedBytes: number;
  errors: number;
  ignoredErrors: number;
  /** Entries that were removed after the listing. They are not errors. */
  vanished: number;
  /** Entries that were stored without their unreadable extended attributes. */
  attributesUnread: number;
  /** Bytes of all files, including cached files. */
  totalBytes: number;
  bytesRead: number;
  /** Bytes of files that were reused from a previous snapshot without reading. */
  cachedBytes: number;
  /** Plaintext bytes that were new to the repository. */
  bytesNew: number;
  /** Their bytes in packs, after compression and encryption. */
  bytesPacked: number;
  contentsNew: number;
  contentsDeduplicated: number;
  /** Objects that were checked before a long upload counts. */
  objectsChecked: number;
  /** Files listed so far, and their bytes, including cached files. */
  filesFound: number;
  bytesFound: number;
  /** Bytes of holes, which are not read. */
  bytesInHoles: number;
  /** Every directory is listed, so `filesFound` and `bytesFound` are final. */
  isListed: boolean;
}

export const newUploadCounters = (): UploadCounters => ({
  files: 0,
  cachedFiles: 0,
  directories: 0,
  skipped: 0,
  excludedFiles: 0,
  excludedDirectories: 0,
  excludedBytes: 0,
  errors: 0,
  ignoredErrors: 0,
  vanished: 0,
  attributesUnread: 0,
  totalBytes: 0,
  bytesRead: 0,
  cachedBytes: 0,
  bytesNew: 0,
  bytesPacked: 0,
  contentsNew: 0,
  contentsDeduplicated: 0,
  objectsChecked: 0,
  filesFound: 0,
  bytesFound: 0,
  bytesInHoles: 0,
  isListed: false,
});
