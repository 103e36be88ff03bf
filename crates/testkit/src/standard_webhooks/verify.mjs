// Verifies requests. The argument is a list of { key, headers, body }; the output is a list with null or an error for each.
// The library supports symmetric signatures only. Node.js (OpenSSL) verifies the asymmetric ones.
import { createPublicKey, verify } from "node:crypto";
import { Webhook } from "standardwebhooks";

function verifyAsymmetric(key, headers, body) {
  const x = Buffer.from(key.slice("whpk_".length), "base64").toString("base64url");
  const publicKey = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x }, format: "jwk" });
  const content = Buffer.from(`${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`);
  const signatures = headers["webhook-signature"].split(" ").filter((one) => one.startsWith("v1a,"));
  const fits = (one) => verify(null, content, publicKey, Buffer.from(one.slice("v1a,".length), "base64"));
  if (!signatures.some(fits)) throw new Error("No matching signature found");
}

function verdict({ key, headers, body }) {
  try {
    if (key.startsWith("whpk_")) verifyAsymmetric(key, headers, body);
    else new Webhook(key).verify(body, headers);
    return null;
  } catch (error) {
    return String(error.message);
  }
}

console.log(JSON.stringify(JSON.parse(process.argv[2]).map(verdict)));
