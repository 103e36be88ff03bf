//! Rate limits, in process or shared through Redis.
