/** Keys and algorithms of one repository, for the threads. */
export interface CodecKeys {
  readonly hash: string;
  readonly encryption: string;
  readonly secret: Uint8Array;
  readonly masterKey: Uint8Array;
}
